//! A block of a run of the index: see streamkit/index/run_format.py.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bytes::{crc32, u32_at, with_bytes};
use crate::zstd;

const HEAD: usize = 16;
const ZSTD: u8 = 1;
const WIDE: u8 = 2;
const SPARES: usize = 8;
const SPARE_BYTES: usize = 16 << 10;

/// Sorted rows. Keys and values are cut out of its bytes when they are asked for.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Block {
    data: Vec<u8>,
    /// Where each key and then each value begins, and the end. They ascend, and none is beyond `data`.
    starts: Vec<u32>,
    rows: usize,
    used: AtomicBool,
}

thread_local! {
    /// Buffers of blocks that are gone. While segments are read here and there, each block takes the place of another.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer for so many bytes, and little more.
fn buffer(bytes: usize) -> Vec<u8> {
    let fits = |spare: &Vec<u8>| (bytes..=bytes + bytes / 4).contains(&spare.capacity());
    let found = SPARE.with(|spare| {
        let mut spare = spare.borrow_mut();
        spare.iter().position(fits).map(|at| spare.swap_remove(at))
    });
    found.unwrap_or_else(|| Vec::with_capacity(bytes + bytes / 8))
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut data = std::mem::take(&mut self.data);
        data.clear();
        // An error: the thread ends.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARES && data.capacity() <= SPARE_BYTES {
                spare.push(data);
            }
        });
    }
}

impl Block {
    fn part(&self, at: usize) -> &[u8] {
        &self.data[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// The key and the value of a row.
    pub fn row(&self, at: usize) -> (&[u8], &[u8]) {
        (self.part(at), self.part(self.rows + at))
    }

    /// The first row from `low` on that is not before `key`.
    pub fn find(&self, key: &[u8], low: usize) -> usize {
        let (mut low, mut high) = (low, self.rows);
        while low < high {
            let middle = (low + high) >> 1;
            if self.part(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The value of the row with this key.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        let at = self.find(key, 0);
        (at < self.rows && self.part(at) == key).then(|| self.part(self.rows + at))
    }

    /// Bytes that it occupies.
    pub fn bytes(&self) -> usize {
        self.data.len() + 4 * self.starts.len() + 200
    }

    fn parts<'py>(&self, py: Python<'py>, from: usize, low: usize, high: usize) -> PyResult<Bound<'py, PyList>> {
        let (low, high) = (low.min(self.rows), high.min(self.rows));
        PyList::new(py, (low..high.max(low)).map(|at| PyBytes::new(py, self.part(from + at))))
    }
}

#[pymethods]
impl Block {
    #[getter]
    fn rows(&self) -> usize {
        self.rows
    }

    #[getter]
    fn size(&self) -> usize {
        self.bytes()
    }

    #[getter]
    fn used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_used(&self, used: bool) {
        self.used.store(used, Ordering::Relaxed);
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    #[pyo3(signature = (key, low = 0))]
    fn seek(&self, key: &[u8], low: usize) -> usize {
        self.find(key, low)
    }

    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> Option<Bound<'py, PyBytes>> {
        self.value(key).map(|value| PyBytes::new(py, value))
    }

    /// The rows with start <= key < end.
    fn between<'py>(&self, py: Python<'py>, start: &[u8], end: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (key, value) in (self.find(start, 0)..self.rows).map(|at| self.row(at)).take_while(|row| row.0 < end) {
            list.append((PyBytes::new(py, key), PyBytes::new(py, value)))?;
        }
        Ok(list)
    }

    fn keys<'py>(&self, py: Python<'py>, low: usize, high: usize) -> PyResult<Bound<'py, PyList>> {
        self.parts(py, 0, low, high)
    }

    fn values<'py>(&self, py: Python<'py>, low: usize, high: usize) -> PyResult<Bound<'py, PyList>> {
        self.parts(py, self.rows, low, high)
    }
}

/// The block in `data`, whose checksum begins with `start`. None if it is not one, or may not be.
#[pyfunction]
pub fn decode_block(data: &Bound<'_, PyAny>, start: u32) -> Option<Block> {
    with_bytes(data, |data| decode(data, start))
}

/// The same of bytes.
pub fn decode(data: &[u8], start: u32) -> Option<Block> {
    if data.len() < HEAD || crc32(&data[4..], start) != u32_at(data, 0)? {
        return None;
    }
    let (flags, rows, raw) = (data[4], u32_at(data, 8)? as usize, u32_at(data, 12)? as usize);
    let body = if flags & ZSTD != 0 {
        zstd::content_of(&data[HEAD..], raw, buffer)?
    } else {
        let mut body = buffer(data.len() - HEAD);
        body.extend_from_slice(&data[HEAD..]);
        body
    };
    let width = if flags & WIDE != 0 { 4 } else { 2 };
    let table = rows.checked_mul(2 * width)?;
    if rows == 0 || body.len() != raw || table > raw {
        return None;
    }
    let mut starts = Vec::with_capacity(2 * rows + 1);
    let mut at = u32::try_from(table).ok()?;
    starts.push(at);
    for length in body[..table].chunks_exact(width) {
        let length = match *length {
            [low, high] => u32::from(u16::from_le_bytes([low, high])),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => return None,
        };
        at = at.checked_add(length)?;
        starts.push(at);
    }
    (at as usize == raw).then_some(Block { data: body, starts, rows, used: false.into() })
}
