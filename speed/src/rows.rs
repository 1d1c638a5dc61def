//! The records of a block of a pack: see streamkit/log/pack_format.py.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyTuple};

use crate::bytes::{View, some};

/// An iterator of (number, record) over records that follow each other in a block. `len` is how many are left.
#[pyclass(module = "streamkit_speed")]
pub struct Rows {
    raw: Py<PyBytes>,
    /// Of the numbers from `number` on. 0: there is none.
    lengths: std::vec::IntoIter<u32>,
    number: u64,
    /// Where the next record begins. All of them end within `raw`.
    at: usize,
    left: usize,
}

impl Rows {
    pub fn raw<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.raw.bind(py).clone()
    }

    /// The number of the next record, and its place in `raw`.
    pub fn next(&mut self) -> Option<(u64, Range<usize>)> {
        loop {
            let (length, number) = (self.lengths.next()? as usize, self.number);
            self.number += 1;
            if length > 0 {
                let start = self.at;
                self.at += length;
                self.left -= 1;
                return Some((number, start..self.at));
            }
        }
    }
}

#[pymethods]
impl Rows {
    fn __len__(&self) -> usize {
        self.left
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some((number, place)) = self.next() else { return Ok(None) };
        let record = PyBytes::new(py, &self.raw.bind(py).as_bytes()[place]);
        PyTuple::new(py, [PyInt::new(py, number).as_any(), record.as_any()]).map(Some)
    }
}

/// The records in `raw` from byte `at` on. The lengths, u32 of this machine, are those of the numbers from `number` on; 0:
/// there is none. None if `raw` has not as many bytes.
#[pyfunction]
pub fn pack_rows(
    raw: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    number: u64,
    #[pyo3(from_py_with = some)] at: Option<usize>,
) -> Option<Rows> {
    let at = at?;
    let raw = raw.cast::<PyBytes>().ok()?;
    // Nobody else has the slice of the lengths that is given.
    let lengths = View::any(lengths)?;
    let lengths: Vec<u32> = lengths
        .bytes()
        .chunks_exact(4)
        .map(|length| u32::from_ne_bytes([length[0], length[1], length[2], length[3]]))
        .collect();
    let end = lengths.iter().try_fold(at, |end, length| end.checked_add(*length as usize))?;
    number.checked_add(lengths.len() as u64)?;
    let left = lengths.iter().filter(|length| **length > 0).count();
    (end <= raw.as_bytes().len()).then(|| Rows { raw: raw.clone().unbind(), lengths: lengths.into_iter(), number, at, left })
}
