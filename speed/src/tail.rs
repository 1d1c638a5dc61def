//! The tail of a section: see Tail in streamkit/index/run_format.py.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::{Writer, u16_at, u32_at};

/// The numbers of an array. It cannot change its length while this lives.
struct Numbers<T: 'static> {
    /// They live as long as the buffer.
    all: &'static [T],
    _buffer: PyBuffer<T>,
}

impl<T: Element> Numbers<T> {
    /// Of an array that nobody changes.
    fn new(object: &Bound<'_, PyAny>) -> Option<Self> {
        let buffer = PyBuffer::get(object).ok()?;
        // SAFETY: the exporter keeps the numbers where they are until the buffer is released, and nobody changes them.
        let all = unsafe { buffer.as_slice_ptr()?.as_ref() };
        Some(Numbers { all, _buffer: buffer })
    }

    fn all(&self) -> &[T] {
        self.all
    }
}

/// The first keys of a section's blocks, the blocks' places, and the filter.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Firsts {
    index: Py<PyBytes>,
    /// They ascend, and none is beyond `index`.
    starts: Numbers<u32>,
    offsets: Numbers<u32>,
    words: Numbers<u64>,
}

/// `Firsts` while it is asked.
#[derive(Clone, Copy)]
pub struct Tail<'a> {
    index: &'a [u8],
    starts: &'a [u32],
    offsets: &'a [u32],
    words: &'a [u64],
}

impl Firsts {
    pub fn tail<'a>(&'a self, py: Python<'a>) -> Tail<'a> {
        let (starts, offsets, words) = (self.starts.all(), self.offsets.all(), self.words.all());
        Tail { index: self.index.as_bytes(py), starts, offsets, words }
    }
}

impl<'a> Tail<'a> {
    pub fn blocks(&self) -> usize {
        self.starts.len() - 1
    }

    /// The first key of a block.
    pub fn first(&self, block: usize) -> &'a [u8] {
        &self.index[self.starts[block] as usize..self.starts[block + 1] as usize]
    }

    /// The place of a block: (start, length) in the section.
    pub fn place(&self, block: usize) -> (u32, u32) {
        (self.offsets[block], self.offsets[block + 1] - self.offsets[block])
    }

    pub fn may_hold(&self, hash: u32, mask: u64) -> bool {
        self.words[hash as usize % self.words.len()] & mask == mask
    }

    /// The block that holds `key` if any does; 0 if it is before the first.
    pub fn block_of(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.blocks());
        while high - low > 1 {
            let middle = (low + high) >> 1;
            if self.first(middle) <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[pymethods]
impl Firsts {
    fn block_of(&self, py: Python<'_>, key: &[u8]) -> usize {
        self.tail(py).block_of(key)
    }
}

/// The first key of block n is in `index`, from `starts[n]` to `starts[n + 1]`; the block is the bytes from `offsets[n]`
/// to `offsets[n + 1]` of the section. None if these arrays are not of one block or more.
#[pyfunction]
pub fn firsts(
    index: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    words: &Bound<'_, PyAny>,
) -> Option<Firsts> {
    let index = index.cast::<PyBytes>().ok()?;
    let (starts, offsets, words) =
        (Numbers::<u32>::new(starts)?, Numbers::<u32>::new(offsets)?, Numbers::<u64>::new(words)?);
    let ascend = |numbers: &[u32]| numbers.windows(2).all(|pair| pair[0] <= pair[1]);
    let right = starts.all().len() > 1
        && starts.all().len() == offsets.all().len()
        && !words.all().is_empty()
        && ascend(starts.all())
        && ascend(offsets.all())
        && *starts.all().last()? as usize <= index.as_bytes().len();
    right.then(|| Firsts { index: index.clone().unbind(), starts, offsets, words })
}

/// `first`, and its sums with the numbers so far, as this machine's u32. `data`: little-endian numbers of 2 or 4 bytes. None
/// if a sum is too large, or if the last number is cut short.
#[pyfunction]
pub fn running_sums<'py>(py: Python<'py>, data: &[u8], width: usize, first: u32) -> Option<Bound<'py, PyBytes>> {
    if !matches!(width, 2 | 4) || data.len() % width != 0 {
        return None;
    }
    let mut sum = first;
    let mut sums = Writer::new(py, size_of::<u32>() * (data.len() / width + 1))?;
    sums.add(&sum.to_ne_bytes());
    for number in data.chunks_exact(width) {
        let number = if width == 2 { u16_at(number, 0)? } else { u32_at(number, 0)? as usize };
        sum = sum.checked_add(u32::try_from(number).ok()?)?;
        sums.add(&sum.to_ne_bytes());
    }
    Some(sums.finish())
}
