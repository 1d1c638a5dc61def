//! Rows of a file of a local log, which follow each other: see backends/streamkit_local/reading.py and state.py.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::append::NEXT_ROW;
use crate::bytes::{crc32, some, u16_at, u32_at, u64_at};
use crate::encode::WHOLE;

const HEADER: usize = 20;

/// A record with a small value.
struct Row<'a> {
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
    /// Bytes of the record.
    length: usize,
}

impl<'a> Row<'a> {
    /// The record at `position` of a log, which is byte `at` of a buffer. None if it is cut short, damaged or large.
    fn at(buffer: &'a [u8], at: usize, position: u64, seed: u32) -> Option<Self> {
        let data = buffer.get(at..)?;
        let (size, name) = (u32_at(data, 4)? as usize, u16_at(data, 16)?);
        let (body, kind) = (HEADER + name, *data.get(18)?);
        let length = body.checked_add(size)?;
        if size > WHOLE || u64_at(data, 8)? != position || crc32(data.get(4..length)?, seed) != u32_at(data, 0)? {
            return None;
        }
        Some(Row { kind, key: &data[HEADER..body], value: &data[body..length], length })
    }
}

/// Adds rows to a page: those with keys before `end` in records from `position` on, which is byte `at` of the buffer, to
/// `stop`. Returns the position after them and the room that is left. It ends where Python has to decide.
///
/// `make(class, (key, value, etag))` makes a row.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn add_rows<'py>(
    rows: &Bound<'py, PyList>,
    make: &Bound<'py, PyAny>,
    class: &Bound<'py, PyAny>,
    etag: &Bound<'py, PyAny>,
    buffer: &Bound<'py, PyBytes>,
    #[pyo3(from_py_with = some)] at: Option<usize>,
    position: u64,
    stop: u64,
    end: &[u8],
    limit: u64,
    mut room: i64,
    seed: u32,
) -> PyResult<(u64, i64)> {
    let (py, data, mut count) = (rows.py(), buffer.as_bytes(), rows.len() as u64);
    let (mut next, mut reached) = (at.unwrap_or(data.len()), position);
    while reached < stop {
        let Some(row) = Row::at(data, next, reached, seed) else { break };
        if row.kind == NEXT_ROW {
            if row.key >= end || count >= limit || room < 0 {
                break;
            }
            let fields = PyTuple::new(
                py,
                [PyBytes::new(py, row.key).as_any(), PyBytes::new(py, row.value).as_any(), etag],
            )?;
            rows.append(make.call1((class, fields))?)?;
            room -= row.value.len() as i64;
            count += 1;
        }
        next += row.length;
        reached += row.length as u64;
    }
    Ok((reached, room))
}

/// A key that is sampled, and the position of its record.
type Sample<'py> = (Bound<'py, PyBytes>, u64);

/// (the position after them, the last key, samples, the position of the next sample) of the rows put with NEXT that follow
/// each other from `position` on, which is byte `at` of the buffer. None if there is none.
///
/// `sample`: the position from which on the next key is sampled; `step`: between two of them.
#[pyfunction]
pub fn next_rows<'py>(
    buffer: &Bound<'py, PyBytes>,
    #[pyo3(from_py_with = some)] at: Option<usize>,
    position: u64,
    seed: u32,
    mut sample: u64,
    step: u64,
) -> Option<(u64, Bound<'py, PyBytes>, Vec<Sample<'py>>, u64)> {
    let (py, data) = (buffer.py(), buffer.as_bytes());
    let (mut next, mut reached, mut last, mut samples) = (at?, position, None, Vec::new());
    while let Some(row) = Row::at(data, next, reached, seed).filter(|row| row.kind == NEXT_ROW) {
        if reached >= sample {
            samples.push((PyBytes::new(py, row.key), reached));
            sample = reached.checked_add(step)?;
        }
        next += row.length;
        reached += row.length as u64;
        last = Some(row.key);
    }
    last.map(|key| (reached, PyBytes::new(py, key), samples, sample))
}
