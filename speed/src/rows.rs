//! The records of a block of a pack: see streamkit/log/pack_format.py.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple};

use crate::bytes::{View, with_bytes};

/// (number, record) of each record in `raw` from byte `at` on. The lengths, u32 of this machine, are those of the numbers
/// from `number` on; 0: there is none. None if `raw` has not as many bytes.
#[pyfunction]
pub fn pack_rows<'py>(
    py: Python<'py>,
    raw: &Bound<'py, PyAny>,
    lengths: &Bound<'py, PyAny>,
    number: u64,
    at: usize,
) -> PyResult<Option<Bound<'py, PyList>>> {
    // Nobody else has the slice of the lengths that is given.
    let Some(lengths) = View::any(lengths) else { return Ok(None) };
    with_bytes(raw, |raw| {
        let rows = PyList::empty(py);
        let (mut number, mut at) = (number, at);
        for length in lengths.bytes().chunks_exact(4) {
            let length = u32::from_ne_bytes(length.try_into().ok()?) as usize;
            if length > 0 {
                let end = at.checked_add(length)?;
                let record = PyBytes::new(py, raw.get(at..end)?);
                at = end;
                let row = PyTuple::new(py, [PyInt::new(py, number).as_any(), record.as_any()]);
                if let Err(error) = row.and_then(|row| rows.append(row)) {
                    return Some(Err(error));
                }
            }
            number = number.checked_add(1)?;
        }
        Some(Ok(rows))
    })
    .transpose()
}
