//! The first keys of a section's blocks: see Tail in streamkit/index/run_format.py.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::View;

/// The first key of block n is in `index`, from `starts[n]` to `starts[n + 1]`.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Firsts {
    index: Py<PyBytes>,
    /// They ascend, and none is beyond `index`.
    starts: Vec<u32>,
}

impl Firsts {
    fn key<'a>(&self, index: &'a [u8], block: usize) -> &'a [u8] {
        &index[self.starts[block] as usize..self.starts[block + 1] as usize]
    }
}

#[pymethods]
impl Firsts {
    /// The first key of a block.
    fn first<'py>(&self, py: Python<'py>, block: usize) -> PyResult<Bound<'py, PyBytes>> {
        if block + 1 >= self.starts.len() {
            return Err(pyo3::exceptions::PyIndexError::new_err("there are fewer blocks"));
        }
        Ok(PyBytes::new(py, self.key(self.index.bind(py).as_bytes(), block)))
    }

    /// The block that holds `key` if any does; 0 if it is before the first.
    fn block_of(&self, py: Python<'_>, key: &[u8]) -> usize {
        let index = self.index.bind(py).as_bytes();
        let (mut low, mut high) = (0, self.starts.len() - 1);
        while high - low > 1 {
            let middle = (low + high) >> 1;
            if self.key(index, middle) <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// None if `starts`, u32 of this machine, are not those of one block or more in `index`.
#[pyfunction]
pub fn firsts(index: &Bound<'_, PyAny>, starts: &Bound<'_, PyAny>) -> Option<Firsts> {
    let index = index.cast::<PyBytes>().ok()?;
    // Nobody else has the array that is given.
    let starts: Vec<u32> = View::any(starts)?
        .bytes()
        .chunks_exact(4)
        .map(|start| u32::from_ne_bytes([start[0], start[1], start[2], start[3]]))
        .collect();
    let right = starts.len() > 1
        && starts.windows(2).all(|pair| pair[0] <= pair[1])
        && *starts.last()? as usize <= index.as_bytes().len();
    right.then(|| Firsts { index: index.clone().unbind(), starts })
}
