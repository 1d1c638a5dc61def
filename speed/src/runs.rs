//! The entries of a segment, out of the runs of an index, in one step: see streamkit/index/runs.py.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::block::{self, Block};
use crate::bytes::crc32;
use crate::cache::{Key, Recent, hash_of_partition};
use crate::file::{Content, Held, OpenRow};
use crate::records::Reader;
use crate::section::{hash_of_subject, mask_of};
use crate::segment;
use crate::tail::{Firsts, Tail};

/// Blocks of a run that are read one by one.
const NEAR: usize = 8;

/// A section of a run.
struct File {
    first: Vec<u8>,
    last: Vec<u8>,
    id: [u8; 16],
    /// Of the row that the section is in.
    key: Py<PyBytes>,
    /// Where the section begins in the value of that row.
    start: usize,
    /// Starts the checksums of its blocks, together with their places.
    seed: u32,
    row: Mutex<Option<Py<OpenRow>>>,
}

/// The blocks first..stop of a file.
struct Span<'a> {
    run: usize,
    file: &'a File,
    tail: Tail<'a>,
    first: usize,
    stop: usize,
}

/// A block that is to be read.
struct Wanted {
    content: Content,
    start: usize,
    length: usize,
    seed: u32,
}

impl Wanted {
    fn new(content: Content, file: &File, tail: &Tail<'_>, number: usize) -> Option<Self> {
        let (offset, length) = tail.place(number);
        let start = file.start.checked_add(offset as usize)?;
        Some(Wanted { content, start, length: length as usize, seed: file.seed ^ offset })
    }

    fn read(&self) -> Option<Block> {
        self.content.bytes(self.start, self.length, |data| block::decode(data, self.seed))
    }
}

/// A block that is in the cache, or was read for one question.
enum Found<'py> {
    Kept(Bound<'py, Block>),
    Read(Block, Key),
}

impl Found<'_> {
    fn block(&self) -> &Block {
        match self {
            Found::Kept(block) => block.get(),
            Found::Read(block, _) => block,
        }
    }
}

/// The runs of a manifest, whose files the backend has opened. Anything that it cannot tell is left to `Runs`, in Python.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Directory {
    blocks: Py<Recent>,
    tails: Py<Recent>,
    partition: u64,
    /// Gives the OpenRow of a key, or None.
    open_row: Py<PyAny>,
    /// The newest first.
    runs: Vec<Vec<File>>,
    inline: Option<Py<Block>>,
    data: Vec<u8>,
    segments: Vec<u8>,
}

/// Where the rows of a segment are.
struct Subject {
    hash: u32,
    mask: u64,
    start: Vec<u8>,
    end: Vec<u8>,
    status: Vec<u8>,
}

impl File {
    fn holds(&self, key: &[u8]) -> bool {
        *self.first <= *key && *key <= *self.last
    }
}

/// The first file that may hold keys from `start` on, before `end`.
fn first_at(files: &[File], start: &[u8], end: &[u8]) -> Option<usize> {
    let at = files.partition_point(|file| *file.last < *start);
    files.get(at).is_some_and(|file| *file.first < *end).then_some(at)
}

/// The file that holds `key` if any does.
fn file_of<'a>(files: &'a [File], key: &[u8]) -> Option<&'a File> {
    files.get(files.partition_point(|file| *file.last < *key)).filter(|file| file.holds(key))
}

impl Directory {
    fn subject(&self, segment: &str, first: u64) -> Subject {
        let name = segment.as_bytes();
        let hash = hash_of_subject(name);
        let start = [&self.data, name, b"\0", &first.to_be_bytes()].concat();
        let (end, status) = ([&self.data, name, b"\x01"].concat(), [&self.segments, name].concat());
        Subject { hash, mask: mask_of(hash), start, end, status }
    }

    fn tail<'py>(&self, py: Python<'py>, file: &File) -> Option<Bound<'py, Firsts>> {
        self.tails.get().firsts(py, &Key { partition: self.partition, id: file.id, number: -1 })
    }

    /// The key of a block.
    fn key(&self, file: &File, number: usize) -> Key {
        Key { partition: self.partition, id: file.id, number: number as i64 }
    }

    /// The file of a row while it is open.
    fn hold<'py>(&self, py: Python<'py>, file: &File) -> Option<(Held<'py>, Py<OpenRow>)> {
        let known = file.row.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|row| row.clone_ref(py));
        if let Some(found) = known.and_then(|row| Some((row.get().hold(py)?, row))) {
            return Some(found);
        }
        let row = self.open_row.bind(py).call1((&file.key,)).ok()?.cast_into::<OpenRow>().ok()?;
        let held = row.get().hold(py)?;
        let row = row.unbind();
        *file.row.lock().unwrap_or_else(PoisonError::into_inner) = Some(row.clone_ref(py));
        Some((held, row))
    }

    /// One block, which is not put into the cache. The entries of peeks have a cache of their own, and a block that takes
    /// the memory of the one before finds it in the processor's cache.
    fn glance<'py>(&self, py: Python<'py>, file: &File, tail: &Tail<'_>, number: usize) -> Option<Found<'py>> {
        let key = self.key(file, number);
        if let Some(found) = self.blocks.get().find(py, &key) {
            return Some(Found::Kept(found.cast_into::<Block>().ok()?));
        }
        let (held, row) = self.hold(py, file)?;
        let wanted = Wanted::new(held.content, file, tail, number)?;
        let block = py.detach(|| wanted.read())?;
        row.get().counts.get().add(1, wanted.length as u64);
        Some(Found::Read(block, key))
    }

    /// The blocks of spans, in order. None if one is not as it must be.
    fn load<'py>(&self, py: Python<'py>, spans: &[Span<'_>]) -> Option<Vec<Bound<'py, Block>>> {
        let cache = self.blocks.get();
        let mut blocks = Vec::new();
        let mut held: Vec<(Held<'py>, Py<OpenRow>)> = Vec::new();
        let mut absent = Vec::new();
        for span in spans {
            let mut open = false;
            for number in span.first..span.stop {
                let found = cache.find(py, &self.key(span.file, number));
                if found.is_none() {
                    if !open {
                        held.push(self.hold(py, span.file)?);
                        open = true;
                    }
                    absent.push((blocks.len(), held.len() - 1, span, number));
                }
                blocks.push(match found {
                    Some(block) => Some(block.cast_into::<Block>().ok()?),
                    None => None,
                });
            }
        }
        if !absent.is_empty() {
            let wanted: Vec<Wanted> = absent
                .iter()
                .map(|(_, held_at, span, number)| {
                    Wanted::new(held[*held_at].0.content, span.file, &span.tail, *number)
                })
                .collect::<Option<_>>()?;
            let read: Vec<Block> = py.detach(|| wanted.iter().map(Wanted::read).collect::<Option<_>>())?;
            let bytes = wanted.iter().map(|part| part.length as u64).sum();
            held[0].1.get().counts.get().add(1, bytes);
            for ((at, _, span, number), block) in absent.into_iter().zip(read) {
                let size = block.bytes();
                let block = Bound::new(py, block).ok()?;
                cache.keep(self.key(span.file, number), block.clone().into_any().unbind(), None, size);
                blocks[at] = Some(block);
            }
        }
        blocks.into_iter().collect()
    }

    /// True if the file of the status, which is not that of the data rows, may hold it. None if nobody knows.
    fn is_status_in(&self, py: Python<'_>, files: &[File], subject: &Subject) -> Option<bool> {
        if files.len() < 2 {
            return Some(false);
        }
        let Some(file) = file_of(files, &subject.status) else { return Some(false) };
        let tail = self.tail(py, file)?;
        Some(tail.get().tail(py).may_hold(subject.hash, subject.mask))
    }
}

#[pymethods]
impl Directory {
    /// `runs`: (first key, last key, id, row's key, start in the row's value) of the files of each run, the newest run
    /// first. `prefixes`: of the keys of data rows and of statuses.
    #[new]
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn new(
        blocks: Py<Recent>,
        tails: Py<Recent>,
        partition: &[u8],
        seed: u32,
        open_row: Py<PyAny>,
        runs: Vec<Vec<(Vec<u8>, Vec<u8>, [u8; 16], Py<PyBytes>, usize)>>,
        inline: Option<Py<Block>>,
        prefixes: (Vec<u8>, Vec<u8>),
    ) -> Self {
        let partition = hash_of_partition(partition);
        let file = |(first, last, id, key, start)| {
            let id: [u8; 16] = id;
            File { first, last, id, key, start, seed: crc32(&id, seed), row: Mutex::default() }
        };
        let runs = runs.into_iter().map(|files| files.into_iter().map(file).collect()).collect();
        let (data, segments) = prefixes;
        Directory { blocks, tails, partition, open_row, runs, inline, data, segments }
    }

    /// `segment_entries` of the blocks that `Runs.blocks_of` finds. None if Python has to find them.
    #[allow(clippy::too_many_arguments)]
    fn entries<'py>(
        &self,
        py: Python<'py>,
        reader: &Bound<'py, Reader>,
        segment: &Bound<'py, PyString>,
        first: u64,
        last: u64,
        entries: &Bound<'py, PyList>,
        most: u64,
    ) -> PyResult<Option<(u64, bool, usize)>> {
        let text = segment.to_cow()?;
        let subject = self.subject(&text, first);
        let Some((blocks, newest)) = self.blocks_of(py, &subject) else { return Ok(None) };
        let blocks: Vec<&Block> = blocks.iter().map(|block| block.get()).collect();
        let (range, bounds) = ((&subject.start[..], &subject.end[..]), (first, last));
        segment::entries_of(py, reader.get(), segment, &blocks, newest, range, bounds, entries, most).map(Some)
    }

    /// The last entry of the row that `Runs.last` finds, if it has at most `most` bytes. None if Python has to find it.
    fn last_entry<'py>(
        &self,
        py: Python<'py>,
        reader: &Bound<'py, Reader>,
        segment: &Bound<'py, PyString>,
        most: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let text = segment.to_cow()?;
        let subject = self.subject(&text, 1);
        let Some(found) = self.last_block(py, &subject) else { return Ok(None) };
        let block = found.block();
        let low = block.find(&subject.start, 0);
        if block.find(&subject.end, low) == low + 1 && block.row(low).1.len() <= most {
            if let Some(entry) = segment::last_of(py, reader.get(), segment, block.row(low).1)? {
                return Ok(Some(entry));
            }
        }
        if let Found::Read(block, key) = found {
            // Python looks at it next.
            let size = block.bytes();
            self.blocks.get().keep(key, Bound::new(py, block)?.into_any().unbind(), None, size);
        }
        Ok(None)
    }
}

impl Directory {
    /// See `Runs.blocks_of`.
    fn blocks_of<'py>(&self, py: Python<'py>, subject: &Subject) -> Option<(Vec<Bound<'py, Block>>, usize)> {
        let (start, end) = (&subject.start[..], &subject.end[..]);
        let mut tails = Vec::new();
        for (run, files) in self.runs.iter().enumerate() {
            let Some(at) = first_at(files, start, end) else { continue };
            let file = &files[at];
            if *file.last < *end && files.get(at + 1).is_some_and(|next| *next.first < *end) {
                return None;
            }
            tails.push((run, file, self.tail(py, file)?));
        }
        let mut spans = Vec::new();
        for (run, file, firsts) in &tails {
            let tail = firsts.get().tail(py);
            if !tail.may_hold(subject.hash, subject.mask) {
                continue;
            }
            let first = tail.block_of(start);
            let mut stop = first + 1;
            while stop < tail.blocks() && tail.first(stop) < end {
                stop += 1;
                if stop - first > NEAR {
                    return None;
                }
            }
            spans.push(Span { run: *run, file, tail, first, stop });
        }
        let (newest, count) = spans.first().map_or((self.runs.len(), 0), |span| (span.run, span.stop - span.first));
        spans.reverse();
        let mut blocks = self.load(py, &spans)?;
        if let Some(inline) = &self.inline {
            let block = inline.get();
            let low = block.find(start, 0);
            if block.find(end, low) > low || block.value(&subject.status).is_some() {
                blocks.push(inline.bind(py).clone());
                return Some((blocks, 1));
            }
        }
        for files in &self.runs[..newest] {
            if self.is_status_in(py, files, subject)? {
                return Some((blocks, 0));
            }
        }
        Some((blocks, count))
    }

    /// The block whose only row of the segment is its last one: see `Runs.last`.
    fn last_block<'py>(&self, py: Python<'py>, subject: &Subject) -> Option<Found<'py>> {
        let (start, end) = (&subject.start[..], &subject.end[..]);
        if let Some(inline) = &self.inline {
            let block = inline.get();
            let low = block.find(start, 0);
            if block.find(end, low) > low || block.value(&subject.status).is_some() {
                return Some(Found::Kept(inline.bind(py).clone()));
            }
        }
        for files in &self.runs {
            if let Some(at) = first_at(files, start, end) {
                let at = at + files[at + 1..].iter().take_while(|file| *file.first < *end).count();
                let (file, firsts) = (&files[at], self.tail(py, &files[at])?);
                let tail = firsts.get().tail(py);
                if tail.may_hold(subject.hash, subject.mask) {
                    let block = tail.block_of(end);
                    let first = if tail.first(block) < end { block } else { block.checked_sub(1)? };
                    return self.glance(py, file, &tail, first);
                }
            }
            if self.is_status_in(py, files, subject)? {
                return None;
            }
        }
        None
    }
}
