//! The entries of a segment, out of blocks of the index: see streamkit/index/runs.py and streamkit/log/index_rows.py.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString};

use crate::block::Block;
use crate::msgpack::Input;
use crate::records::{Frame, Place, Reader, Records, Same};

/// A frame of a segment and its place, as a data row of the index has it.
pub struct Piece<'a> {
    pub number: u64,
    pub first: u64,
    pub count: u64,
    pub frame: Option<&'a [u8]>,
}

impl<'a> Piece<'a> {
    fn decode(input: &mut Input<'a>) -> Option<Self> {
        if input.array()? != 9 {
            return None;
        }
        let (number, _timestamp) = (input.unsigned()?, input.unsigned()?);
        let (first, count) = (input.unsigned()?, input.unsigned()?);
        let (_start, _length) = (input.unsigned()?, input.unsigned()?);
        let frame = input.bin_or_nil()?;
        let (_before, _size) = (input.unsigned()?, input.unsigned()?);
        Some(Piece { number, first, count, frame })
    }
}

/// The number of pieces in a data row, which follow.
fn pieces(input: &mut Input<'_>) -> Option<usize> {
    if input.array()? != 1 {
        return None;
    }
    input.array()
}

/// The last piece of a data row.
fn last_piece(row: &[u8]) -> Option<Piece<'_>> {
    let mut input = Input::new(row);
    let mut last = None;
    for _ in 0..pieces(&mut input)? {
        last = Some(Piece::decode(&mut input)?);
    }
    last.filter(|_| input.is_empty())
}

/// The rows with start <= key < end of blocks, in order. Of rows with one key it has that of the last block.
fn rows<'a>(blocks: &[&'a Block], start: &[u8], end: &[u8]) -> Vec<(&'a [u8], &'a [u8])> {
    let mut rows: Vec<(&[u8], &[u8])> = Vec::new();
    let mut ascending = true;
    for block in blocks {
        let low = block.find(start, 0);
        for at in low..block.find(end, low) {
            let row = block.row(at);
            ascending = ascending && rows.last().is_none_or(|last| last.0 < row.0);
            rows.push(row);
        }
    }
    if !ascending {
        rows.reverse();
        rows.sort_by_key(|row| row.0);
        rows.dedup_by_key(|row| row.0);
    }
    rows
}

/// The bytes of the only row with start <= key < end; 0 if there is none, or if there are several.
fn lone_row(blocks: &[&Block], start: &[u8], end: &[u8]) -> usize {
    let mut bytes = 0;
    for block in blocks {
        let low = block.find(start, 0);
        match block.find(end, low) - low {
            0 => continue,
            1 if bytes == 0 => bytes = block.row(low).1.len(),
            _ => return 0,
        }
    }
    bytes
}

/// Makes the entries of a segment's pieces.
struct Maker<'a, 'py> {
    py: Python<'py>,
    records: &'a Records,
    place: Place<'a, 'py>,
    seed: u32,
    segment: &'a Bound<'py, PyString>,
    text: &'a str,
    same: Same<'py>,
    entries: &'a Bound<'py, PyList>,
}

impl<'a, 'py> Maker<'a, 'py> {
    fn new(
        py: Python<'py>,
        reader: &'a Reader,
        segment: &'a Bound<'py, PyString>,
        text: &'a str,
        entries: &'a Bound<'py, PyList>,
    ) -> Self {
        let (records, place, seed) = (reader.records.get(), reader.place(py), reader.seed);
        Maker { py, records, place, seed, segment, text, same: Same::default(), entries }
    }

    /// Appends the entries of a frame from sequence `first` on. False if it is not that of `piece`, or left to Python.
    fn add(&mut self, frame: &[u8], piece: &Piece<'_>, first: u64) -> PyResult<bool> {
        let Some(decoded) = Frame::decode(frame, 0, self.seed) else { return Ok(false) };
        let head = &decoded.head;
        let right = decoded.after == frame.len()
            && (head.number, head.first, head.count) == (piece.number, piece.first, piece.count)
            && head.segment == self.text;
        if !right {
            return Ok(false);
        }
        let (py, place) = (self.py, &self.place);
        if let Some(payload) = decoded.lone() {
            let number = PyInt::new(py, head.number).into_any();
            let segment = self.segment.clone().into_any();
            let entry = self.records.lone_entry(py, place, &mut self.same, head, segment, number, payload)?;
            self.entries.append(entry)?;
            return Ok(true);
        }
        let Some(found) = self.records.decoded(py, place, frame, 0, self.seed, first)? else { return Ok(false) };
        for entry in found.get_item(1)?.get_item(2)?.cast::<PyList>()? {
            self.entries.append(entry)?;
        }
        Ok(true)
    }

    /// (the sequence after the last entry, True if the rows have no more of the entries first..last).
    fn add_rows(&mut self, rows: &[(&[u8], &[u8])], first: u64, last: u64, most: u64) -> PyResult<(u64, bool)> {
        let mut next = first;
        for (_, value) in rows {
            let mut input = Input::new(value);
            let Some(count) = pieces(&mut input) else { return Ok((next, false)) };
            for _ in 0..count {
                let Some(piece) = Piece::decode(&mut input) else { return Ok((next, false)) };
                let Some(after) = piece.first.checked_add(piece.count) else { return Ok((next, false)) };
                if after <= next {
                    continue;
                }
                if next > last {
                    return Ok((next, true));
                }
                let follows = piece.first <= next && after - 1 <= last && next - first < most;
                let Some(frame) = piece.frame.filter(|_| follows) else { return Ok((next, false)) };
                if !self.add(frame, &piece, next)? {
                    return Ok((next, false));
                }
                next = after;
            }
            if !input.is_empty() {
                return Ok((next, false));
            }
        }
        Ok((next, true))
    }
}

/// Appends the entries of the sequences first..last to `entries`, out of the data rows with start <= key < end in
/// `blocks`, as long as one piece follows on the other and its frame is not left to Python. Stops after about `most`
/// entries.
///
/// (the sequence after the last entry, True if the rows have no more of them, bytes of the row in the last `newest`
/// blocks or 0 if these have several or none). None if Python has to look at the blocks.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn segment_entries<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    blocks: &Bound<'py, PyList>,
    newest: usize,
    start: &[u8],
    end: &[u8],
    first: u64,
    last: u64,
    entries: &Bound<'py, PyList>,
    most: u64,
) -> PyResult<Option<(u64, bool, usize)>> {
    let reader = reader.get();
    let Some(segment) = &reader.segment else { return Ok(None) };
    let mut held = Vec::with_capacity(blocks.len());
    for block in blocks {
        let Ok(block) = block.cast_into::<Block>() else { return Ok(None) };
        held.push(block);
    }
    let blocks: Vec<&Block> = held.iter().map(|block| block.get()).collect();
    entries_of(py, reader, segment.bind(py), &blocks, newest, (start, end), (first, last), entries, most).map(Some)
}

/// The same of blocks that the twin has.
#[allow(clippy::too_many_arguments)]
pub fn entries_of<'py>(
    py: Python<'py>,
    reader: &Reader,
    segment: &Bound<'py, PyString>,
    blocks: &[&Block],
    newest: usize,
    (start, end): (&[u8], &[u8]),
    (first, last): (u64, u64),
    entries: &Bound<'py, PyList>,
    most: u64,
) -> PyResult<(u64, bool, usize)> {
    let newest = lone_row(&blocks[blocks.len().saturating_sub(newest)..], start, end);
    let rows = rows(blocks, start, end);
    let text = segment.to_cow()?;
    let mut maker = Maker::new(py, reader, segment, &text, entries);
    let (next, ended) = maker.add_rows(&rows, first, last, most)?;
    Ok((next, ended, newest))
}

/// The same out of one data row of the index: (the sequence after the last entry, True if the row has no more of them).
#[pyfunction]
pub fn row_entries<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    row: &Bound<'py, PyBytes>,
    first: u64,
    last: u64,
    entries: &Bound<'py, PyList>,
    most: u64,
) -> PyResult<Option<(u64, bool)>> {
    let reader = reader.get();
    let Some(segment) = &reader.segment else { return Ok(None) };
    let segment = segment.bind(py);
    let text = segment.to_cow()?;
    let mut maker = Maker::new(py, reader, segment, &text, entries);
    maker.add_rows(&[(&[], row.as_bytes())], first, last, most).map(Some)
}

/// The last entry of a data row of the index. None if Python has to look at it.
#[pyfunction]
pub fn last_entry<'py>(
    py: Python<'py>,
    reader: &Bound<'py, Reader>,
    row: &Bound<'py, PyBytes>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let reader = reader.get();
    let Some(segment) = &reader.segment else { return Ok(None) };
    last_of(py, reader, segment.bind(py), row.as_bytes())
}

/// The same of a row that the twin has.
pub fn last_of<'py>(
    py: Python<'py>,
    reader: &Reader,
    segment: &Bound<'py, PyString>,
    row: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(piece) = last_piece(row) else { return Ok(None) };
    let Some(after) = piece.first.checked_add(piece.count).filter(|_| piece.count > 0) else { return Ok(None) };
    let Some(frame) = piece.frame else { return Ok(None) };
    let text = segment.to_cow()?;
    let entries = PyList::empty(py);
    let mut maker = Maker::new(py, reader, segment, &text, &entries);
    if !maker.add(frame, &piece, after - 1)? || entries.is_empty() {
        return Ok(None);
    }
    entries.get_item(entries.len() - 1).map(Some)
}
