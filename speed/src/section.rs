//! Rows of a section of a run: see streamkit/index/run_format.py and subject_filter.py.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bytes::{View, Writer, crc32, some, u32_at};

const WIDE: u8 = 2;
/// Bytes of a block before its body.
const FRONT: usize = 16;
const BITS: usize = 12;
const MIX: u32 = 0x9E37_79B1;
pub const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes at the end of a data row's key: the separator and the sequence.
const SEQUENCE: usize = 9;

/// What the keys of the three kinds of rows begin with that have a subject: data, idempotency keys, segments.
type Prefixes<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn hash_of(key: &[u8], (data, keys, segments): Prefixes<'_>) -> u32 {
    let subject = if let Some(rest) = key.strip_prefix(data) {
        &rest[..rest.len().saturating_sub(SEQUENCE)]
    } else if let Some(rest) = key.strip_prefix(keys) {
        rest
    } else {
        key.strip_prefix(segments).unwrap_or(key)
    };
    hash_of_subject(subject)
}

pub fn hash_of_subject(subject: &[u8]) -> u32 {
    crc32(subject, 0).wrapping_mul(MIX)
}

pub fn mask_of(hash: u32) -> u64 {
    static MASKS: OnceLock<Vec<u64>> = OnceLock::new();
    let masks = MASKS.get_or_init(|| {
        (1..=4096u64)
            .map(|pattern| {
                let mixed = pattern.wrapping_mul(SPREAD);
                let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(SPREAD);
                [58, 52, 46, 40, 34].iter().fold(0, |mask, shift| mask | 1 << ((mixed >> shift) & 63))
            })
            .collect()
    });
    masks[(hash >> 20) as usize]
}

/// The bytes of the objects of a list. None if some are no bytes.
fn all_bytes<'a>(objects: &'a [Bound<'_, PyAny>]) -> Option<Vec<&'a [u8]>> {
    objects.iter().map(|object| Some(object.cast::<PyBytes>().ok()?.as_bytes())).collect()
}

/// Hashes are spread already.
#[derive(Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write_u32(&mut self, hash: u32) {
        // The table takes bits of both ends.
        self.0 = u64::from(hash) << 32 | u64::from(hash);
    }
}

/// (hashes, blocks) of sorted rows. The rows from `new` on are new. The hashes are those of the subjects, each once, as
/// unsigned integers of 32 bits. A block is full: (rows up to its end, body, flags).
///
/// None if a key is not after the one before it, or not after `last`, the one before `new`.
#[pyfunction]
pub fn section_rows<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyList>,
    values: &Bound<'py, PyList>,
    new: usize,
    last: Option<&[u8]>,
    full: usize,
    prefixes: Prefixes<'py>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyList>)>> {
    let (keys, values): (Vec<_>, Vec<_>) = (keys.iter().collect(), values.iter().collect());
    let (Some(keys), Some(values)) = (all_bytes(&keys), all_bytes(&values)) else {
        return Ok(None);
    };
    if keys.len() != values.len() || new >= keys.len() || last.is_some_and(|last| keys[new] <= last) {
        return Ok(None);
    }
    if !keys[new..].is_sorted_by(|one, other| one < other) {
        return Ok(None);
    }
    let mut seen = HashSet::<u32, BuildHasherDefault<AsItIs>>::default();
    let mut hashes = Vec::with_capacity(4 * (keys.len() - new));
    for key in &keys[new..] {
        let hash = hash_of(key, prefixes);
        if seen.insert(hash) {
            hashes.extend_from_slice(&hash.to_ne_bytes());
        }
    }
    let blocks = PyList::empty(py);
    let (mut begin, mut size) = (0, 0);
    for at in 0..keys.len() {
        size += keys[at].len() + values[at].len();
        if size >= full {
            let Some((body, flags)) = body_of(&keys[begin..=at], &values[begin..=at], size) else {
                return Ok(None);
            };
            blocks.append((at + 1, PyBytes::new(py, &body), flags))?;
            (begin, size) = (at + 1, 0);
        }
    }
    Ok(Some((PyBytes::new(py, &hashes), blocks)))
}

/// (the blocks one after the other, their rows, their lengths) of neighbouring blocks of a section for another place. The
/// first one is at `offset`, and will be at `size`. `before` and `now` start the checksums of both sections, together with
/// the places. The lengths are unsigned integers of 32 bits. None if a block is damaged.
#[pyfunction]
pub fn moved_blocks<'py>(
    py: Python<'py>,
    blocks: &Bound<'py, PyList>,
    offset: u32,
    before: u32,
    #[pyo3(from_py_with = some)] size: Option<u32>,
    now: u32,
) -> Option<(Bound<'py, PyBytes>, u64, Bound<'py, PyBytes>)> {
    let size = size?;
    let blocks: Vec<_> = blocks.iter().collect();
    let blocks = all_bytes(&blocks)?;
    let mut out = Writer::new(py, blocks.iter().map(|block| block.len()).sum())?;
    let (mut at, mut rows, mut lengths) = (0u32, 0, Vec::with_capacity(4 * blocks.len()));
    for block in blocks {
        let (length, rest) = (u32::try_from(block.len()).ok()?, block.get(4..)?);
        if block.len() < FRONT || crc32(rest, before ^ offset.checked_add(at)?) != u32_at(block, 0)? {
            return None;
        }
        rows += u64::from(u32_at(block, 8)?);
        out.add(&crc32(rest, now ^ size.checked_add(at)?).to_le_bytes());
        out.add(rest);
        lengths.extend_from_slice(&length.to_ne_bytes());
        at = at.checked_add(length)?;
    }
    Some((out.finish(), rows, PyBytes::new(py, &lengths)))
}

/// The body of a block, and its flags. `size`: the bytes of all keys and values.
fn body_of(keys: &[&[u8]], values: &[&[u8]], size: usize) -> Option<(Vec<u8>, u8)> {
    let wide = keys.iter().chain(values).any(|part| part.len() > usize::from(u16::MAX));
    let mut body = Vec::with_capacity(2 * keys.len() * if wide { 4 } else { 2 } + size);
    for part in keys.iter().chain(values) {
        if wide {
            body.extend_from_slice(&u32::try_from(part.len()).ok()?.to_le_bytes());
        } else {
            body.extend_from_slice(&(part.len() as u16).to_le_bytes());
        }
    }
    for part in keys.iter().chain(values) {
        body.extend_from_slice(part);
    }
    Some((body, if wide { WIDE } else { 0 }))
}

/// The words of a filter of subjects with these hashes, which are integers of 32 bits. `once`: each is counted once.
#[pyfunction]
pub fn filter_words<'py>(
    py: Python<'py>,
    hashes: &Bound<'py, PyAny>,
    once: bool,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(view) = View::any(hashes) else {
        return Ok(None);
    };
    // The hashes of a large section take megabytes: they are only copied to be sorted.
    let hashes = view.bytes().chunks_exact(4).filter_map(|part| part.try_into().ok()).map(u32::from_ne_bytes);
    if once {
        let mut sorted: Vec<u32> = hashes.collect();
        sorted.sort_unstable();
        sorted.dedup();
        return words_of(py, sorted.len(), sorted.into_iter()).map(Some);
    }
    words_of(py, view.bytes().len() / 4, hashes).map(Some)
}

/// The words of a filter of `count` hashes.
fn words_of<'py>(
    py: Python<'py>,
    count: usize,
    hashes: impl Iterator<Item = u32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let size = count * BITS / 64 + 1;
    PyBytes::new_with(py, 8 * size, |data| {
        for hash in hashes {
            let word = &mut data[hash as usize % size * 8..][..8];
            for (byte, more) in word.iter_mut().zip(mask_of(hash).to_le_bytes()) {
                *byte |= more;
            }
        }
        Ok(())
    })
}

/// Those of `keys` whose subjects the filter with these words may have. None if it is not one.
#[pyfunction]
pub fn passing<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyList>,
    words: &Bound<'py, PyAny>,
    prefixes: Prefixes<'py>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let Some(view) = View::any(words) else {
        return Ok(None);
    };
    let words = view.bytes();
    let count = words.len() / 8;
    if count == 0 {
        return Ok(None);
    }
    let passed = PyList::empty(py);
    for key in keys.iter() {
        let Ok(bytes) = key.cast::<PyBytes>() else {
            return Ok(None);
        };
        let hash = hash_of(bytes.as_bytes(), prefixes);
        let mask = mask_of(hash);
        let at = hash as usize % count * 8;
        if u64::from_ne_bytes(words[at..at + 8].try_into()?) & mask == mask {
            passed.append(key)?;
        }
    }
    Ok(Some(passed))
}
