//! The data rows of the transactions that the index lacks: see streamkit/index/upkeep.py.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyType};

use crate::bytes::Writer;
use crate::encode::{Output, unsigned};
use crate::structs::Struct;

/// How a segment's pieces are divided: the bytes that a piece counts beside its frame, and the most bytes and the most
/// pieces of a row.
type Limits = (usize, usize, usize);

/// A data row while pieces are added.
struct Row {
    pieces: Output,
    count: usize,
    size: usize,
    last_sequence: u64,
}

impl Row {
    /// Adds the row to the others, and begins the next one.
    fn end<'py>(
        &mut self,
        key: &mut Vec<u8>,
        name: usize,
        rows: &(Bound<'py, PyList>, Bound<'py, PyList>),
    ) -> PyResult<Option<()>> {
        let py = rows.0.py();
        key.truncate(name);
        key.extend_from_slice(&self.last_sequence.to_be_bytes());
        rows.0.append(PyBytes::new(py, key))?;
        let Ok(count) = u16::try_from(self.count) else {
            return Ok(None);
        };
        let [high, low] = count.to_be_bytes();
        let (short, long) = ([0x91, 0x90 | low], [0x91, 0xdc, high, low]);
        let front: &[u8] = if count < 16 { &short } else { &long };
        let Some(mut value) = Writer::new(py, front.len() + self.pieces.bytes.len()) else {
            return Ok(None);
        };
        value.add(front);
        value.add(&self.pieces.bytes);
        rows.1.append(value.finish())?;
        self.pieces.bytes.clear();
        (self.count, self.size) = (0, 0);
        Ok(Some(()))
    }

    /// Adds a piece, which has these fields and this frame. None if a number has no place in it.
    fn add(&mut self, fields: &[Borrowed<'_, '_, PyAny>; 9], frame: Option<&[u8]>) -> Option<()> {
        let out = &mut self.pieces;
        out.bytes.push(0x99);
        for field in &fields[..6] {
            out.unsigned(unsigned(field)?);
        }
        match frame {
            Some(frame) => out.bin(frame)?,
            None => out.bytes.push(0xc0),
        }
        for field in &fields[7..] {
            out.unsigned(unsigned(field)?);
        }
        let (first, count) = (unsigned(&fields[2])?, unsigned(&fields[3])?);
        self.last_sequence = first.checked_add(count)?.checked_sub(1)?;
        Some(())
    }
}

/// (keys, values) of the rows that hold the pieces of `segments`, in order. `tail` has a list of pieces, which are of
/// `class`, for each segment. The keys begin with `prefix`. None if Python has to encode them.
#[pyfunction]
pub fn data_rows<'py>(
    py: Python<'py>,
    segments: &Bound<'py, PyList>,
    tail: &Bound<'py, PyDict>,
    class: Py<PyType>,
    prefix: &[u8],
    limits: Limits,
) -> PyResult<Option<(Bound<'py, PyList>, Bound<'py, PyList>)>> {
    let (beside, most_bytes, most_pieces) = limits;
    let class = Struct::<9>::new(py, class)?;
    let rows = (PyList::empty(py), PyList::empty(py));
    let mut row = Row { pieces: Output { bytes: Vec::new() }, count: 0, size: 0, last_sequence: 0 };
    let mut key = prefix.to_vec();
    for segment in segments.iter() {
        let Ok(name) = segment.cast::<PyString>() else {
            return Ok(None);
        };
        let Ok(text) = name.to_cow() else {
            return Ok(None);
        };
        let Some(pieces) = tail.get_item(&segment)? else {
            return Ok(None);
        };
        let Ok(pieces) = pieces.cast_into_exact::<PyList>() else {
            return Ok(None);
        };
        key.truncate(prefix.len());
        key.extend_from_slice(text.as_bytes());
        key.push(0);
        let start = key.len();
        for piece in pieces.iter() {
            let Some(fields) = class.borrowed(&piece) else {
                return Ok(None);
            };
            let frame = &fields[6];
            let data = match frame.cast_exact::<PyBytes>() {
                Ok(data) => Some(crate::bytes::bytes_of(data)),
                Err(_) if frame.is_none() => None,
                Err(_) => return Ok(None),
            };
            let size = beside + data.map_or(0, <[u8]>::len);
            if row.count > 0
                && (row.size + size > most_bytes || row.count == most_pieces)
                && row.end(&mut key, start, &rows)?.is_none()
            {
                return Ok(None);
            }
            if row.add(&fields, data).is_none() {
                return Ok(None);
            }
            row.count += 1;
            row.size += size;
        }
        if row.count > 0 && row.end(&mut key, start, &rows)?.is_none() {
            return Ok(None);
        }
    }
    Ok(Some(rows))
}
