//! Records of the log, as bytes: see streamkit/log/record_format.py and backends/streamkit_local/record.py.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::bytes::{crc32, with_bytes};

const VERSION: u8 = 2;
const MAGIC: &[u8] = b"SKTX";
const HEADER_AT: usize = 24;
const FRAME: usize = 16;
/// A row of the local log is checked as a whole up to this size.
const WHOLE: usize = 16 << 10;
/// The value of a larger one has a checksum for so many bytes.
const BLOCK: usize = 4096;

/// Bytes of frames. Larger ones are joined in Python, which makes one copy less.
const MOST: usize = 4 << 20;

/// msgpack as msgspec writes it: every value in as few bytes as possible.
struct Output {
    bytes: Vec<u8>,
}

impl Output {
    fn unsigned(&mut self, number: u64) {
        let bytes = &mut self.bytes;
        match number {
            0..=0x7f => bytes.push(number as u8),
            0x80..=0xff => bytes.extend_from_slice(&[0xcc, number as u8]),
            0x100..=0xffff => {
                bytes.push(0xcd);
                bytes.extend_from_slice(&(number as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                bytes.push(0xce);
                bytes.extend_from_slice(&(number as u32).to_be_bytes());
            }
            _ => {
                bytes.push(0xcf);
                bytes.extend_from_slice(&number.to_be_bytes());
            }
        }
    }

    /// `data` has less than 256 bytes.
    fn short_bin(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(&[0xc4, data.len() as u8]);
        self.bytes.extend_from_slice(data);
    }

    /// `text` has less than 65,536 bytes.
    fn str(&mut self, text: &str) {
        let length = text.len();
        match length {
            0..=31 => self.bytes.push(0xa0 | length as u8),
            32..=255 => self.bytes.extend_from_slice(&[0xd9, length as u8]),
            _ => {
                self.bytes.push(0xda);
                self.bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

/// What all frames of a transaction say.
struct Common<'a> {
    number: u64,
    timestamp: u64,
    id: &'a [u8],
    node: &'a [u8],
}

impl Common<'_> {
    /// The front of a frame, up to its body.
    #[allow(clippy::too_many_arguments)]
    fn front(
        &self,
        out: &mut Output,
        position: u64,
        index: u64,
        segment: &str,
        first: u64,
        count: u64,
        body: &[u8],
        raw: u32,
        flags: u8,
        seed: u32,
    ) -> Option<()> {
        let at = out.bytes.len();
        out.bytes.extend_from_slice(&[0; FRAME]);
        out.bytes.push(0x99);
        out.unsigned(self.number);
        out.unsigned(self.timestamp);
        out.short_bin(self.id);
        out.short_bin(self.node);
        out.unsigned(position);
        out.unsigned(index);
        out.str(segment);
        out.unsigned(first);
        out.unsigned(count);
        let front = &mut out.bytes[at..];
        let head = u16::try_from(front.len() - FRAME).ok()?;
        front[4..6].copy_from_slice(&head.to_le_bytes());
        front[6] = flags;
        front[8..12].copy_from_slice(&u32::try_from(body.len()).ok()?.to_le_bytes());
        front[12..16].copy_from_slice(&raw.to_le_bytes());
        let sum = crc32(body, crc32(&front[4..], seed));
        front[..4].copy_from_slice(&sum.to_le_bytes());
        Some(())
    }
}

/// A number that fits, or None.
fn some(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    Ok(object.extract().ok())
}

/// The record of a transaction with one frame and nothing else. None where Python has to decide.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn encode_lone<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = some)] number: Option<u64>,
    #[pyo3(from_py_with = some)] timestamp: Option<u64>,
    id: &[u8],
    node: &[u8],
    #[pyo3(from_py_with = some)] position: Option<u64>,
    segment: &Bound<'py, PyString>,
    #[pyo3(from_py_with = some)] first: Option<u64>,
    #[pyo3(from_py_with = some)] count: Option<u64>,
    body: &Bound<'py, PyAny>,
    raw: u32,
    flags: u8,
    #[pyo3(from_py_with = some)] before: Option<u64>,
    #[pyo3(from_py_with = some)] given: Option<u64>,
    #[pyo3(from_py_with = some)] size: Option<u64>,
    seed: u32,
) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
    let Ok(segment) = segment.to_cow() else { return Ok(None) };
    if id.len() > 255 || node.len() > 255 || segment.len() > 4096 {
        return Ok(None);
    }
    Ok(with_bytes(body, |body| {
        let (number, timestamp, position) = (number?, timestamp?, position?);
        let (first, count, before, given, size) = (first?, count?, before?, given?, size?);
        let mut head = Output { bytes: Vec::with_capacity(128 + segment.len()) };
        let common = Common { number, timestamp, id, node };
        common.front(&mut head, position, 0, &segment, first, count, body, raw, flags, seed)?;
        let head = head.bytes;
        let frame = head.len() + body.len();
        let mut record = Output { bytes: Vec::with_capacity(HEADER_AT + 320 + 2 * segment.len()) };
        record.bytes.resize(HEADER_AT, 0);
        record.bytes.push(0x9d);
        record.unsigned(number);
        record.unsigned(timestamp);
        record.short_bin(id);
        record.short_bin(node);
        record.unsigned(position);
        record.bytes.extend_from_slice(&[0x91, 0x97]);
        record.str(&segment);
        record.unsigned(first);
        record.unsigned(count);
        record.unsigned(0);
        record.unsigned(frame as u64);
        record.unsigned(before);
        record.unsigned(given);
        // No keys, fences, answers, lead or waiting processes.
        record.bytes.extend_from_slice(&[0x90, 0x80, 0x90, 0xc4, 0, 0]);
        record.unsigned(size);
        record.bytes.push(0xc0);
        let mut front = record.bytes;
        let header = u32::try_from(front.len() - HEADER_AT).ok()?;
        let whole = front.len() + frame;
        front[..4].copy_from_slice(MAGIC);
        front[8] = VERSION;
        front[12..16].copy_from_slice(&header.to_le_bytes());
        front[16..24].copy_from_slice(&(whole as u64).to_le_bytes());
        let sum = crc32(&front[8..], seed);
        front[4..8].copy_from_slice(&sum.to_le_bytes());
        front.extend_from_slice(&head);
        let record = PyBytes::new_with(py, whole, |record| {
            let (start, rest) = record.split_at_mut(front.len());
            start.copy_from_slice(&front);
            rest.copy_from_slice(body);
            Ok(())
        });
        Some((record.ok()?, frame))
    }))
}

/// The frames of a transaction, one after the other, and the bytes of each: of `parts`, each (segment, first sequence,
/// body). None where Python has to decide.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn encode_frames<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = some)] number: Option<u64>,
    #[pyo3(from_py_with = some)] timestamp: Option<u64>,
    id: &[u8],
    node: &[u8],
    #[pyo3(from_py_with = some)] position: Option<u64>,
    parts: &Bound<'py, PyList>,
    seed: u32,
) -> PyResult<Option<(Bound<'py, PyBytes>, Vec<usize>)>> {
    let (Some(number), Some(timestamp), Some(position)) = (number, timestamp, position) else { return Ok(None) };
    if id.len() > 255 || node.len() > 255 {
        return Ok(None);
    }
    let common = Common { number, timestamp, id, node };
    let mut out = Output { bytes: Vec::with_capacity(256 * parts.len()) };
    let mut lengths = Vec::with_capacity(parts.len());
    let mut index = 0u64;
    for part in parts.iter() {
        let part = part.cast_into::<PyTuple>()?;
        let (segment, body) = (part.get_item(0)?, part.get_item(2)?);
        let Ok(segment) = segment.cast_into::<PyString>() else { return Ok(None) };
        let Ok(segment) = segment.to_cow() else { return Ok(None) };
        let numbers = (
            part.get_item(1)?.extract::<u64>(),
            body.getattr(intern!(py, "count"))?.extract::<u64>(),
            body.getattr(intern!(py, "raw"))?.extract::<u32>(),
            body.getattr(intern!(py, "flags"))?.extract::<u8>(),
        );
        let (Ok(first), Ok(count), Ok(raw), Ok(flags)) = numbers else { return Ok(None) };
        let at = out.bytes.len();
        let data = body.getattr(intern!(py, "data"))?;
        let done = with_bytes(&data, |data| {
            if segment.len() > 4096 {
                return None;
            }
            let place = position.checked_add(index)?;
            common.front(&mut out, place, index, &segment, first, count, data, raw, flags, seed)?;
            out.bytes.extend_from_slice(data);
            index = index.checked_add(count)?;
            Some(())
        });
        if done.is_none() {
            return Ok(None);
        }
        lengths.push(out.bytes.len() - at);
        if out.bytes.len() > MOST {
            return Ok(None);
        }
    }
    Ok(Some((PyBytes::new(py, &out.bytes), lengths)))
}

/// The header of a row of the local log; a small value is part of it, a larger value follows it. None for a row that is
/// left to Python.
#[pyfunction]
pub fn pack_row<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = some)] position: Option<u64>,
    kind: u8,
    key: &[u8],
    value: &Bound<'py, PyAny>,
    seed: u32,
) -> Option<Bound<'py, PyBytes>> {
    with_bytes(value, |value| {
        let position = position?;
        let length = u16::try_from(key.len()).ok()?;
        let size = u32::try_from(value.len()).ok()?;
        let follows = if value.len() <= WHOLE { value.len() } else { value.len().div_ceil(BLOCK) * 4 };
        let mut row = Vec::with_capacity(20 + key.len() + follows);
        row.extend_from_slice(&[0; 4]);
        row.extend_from_slice(&size.to_le_bytes());
        row.extend_from_slice(&position.to_le_bytes());
        row.extend_from_slice(&length.to_le_bytes());
        row.extend_from_slice(&[kind, 0]);
        row.extend_from_slice(key);
        if value.len() <= WHOLE {
            row.extend_from_slice(value);
        } else {
            for block in value.chunks(BLOCK) {
                row.extend_from_slice(&crc32(block, 0).to_le_bytes());
            }
        }
        let sum = crc32(&row[4..], seed);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        Some(PyBytes::new(py, &row))
    })
}
