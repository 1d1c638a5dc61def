//! Records of the log, as bytes: see streamkit/log/record_format.py and backends/streamkit_local/record.py.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::bytes::{crc32, with_bytes};

const VERSION: u8 = 2;
const MAGIC: &[u8] = b"SKTX";
const HEADER_AT: usize = 24;
const FRAME: usize = 16;
/// A row of the local log is checked as a whole up to this size.
const WHOLE: usize = 16 << 10;

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
        head.bytes.push(0x99);
        head.unsigned(number);
        head.unsigned(timestamp);
        head.short_bin(id);
        head.short_bin(node);
        head.unsigned(position);
        head.unsigned(0);
        head.str(&segment);
        head.unsigned(first);
        head.unsigned(count);
        let head = head.bytes;
        let frame = FRAME + head.len() + body.len();
        let body_bytes = u32::try_from(body.len()).ok()?;
        let mut record = Output { bytes: Vec::with_capacity(HEADER_AT + 160 + segment.len() + frame) };
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
        let mut record = record.bytes;
        let header = u32::try_from(record.len() - HEADER_AT).ok()?;
        let whole = (record.len() + frame) as u64;
        record[..4].copy_from_slice(MAGIC);
        record[8] = VERSION;
        record[12..16].copy_from_slice(&header.to_le_bytes());
        record[16..24].copy_from_slice(&whole.to_le_bytes());
        let sum = crc32(&record[8..], seed);
        record[4..8].copy_from_slice(&sum.to_le_bytes());
        let at = record.len();
        record.extend_from_slice(&[0; 4]);
        record.extend_from_slice(&(head.len() as u16).to_le_bytes());
        record.extend_from_slice(&[flags, 0]);
        record.extend_from_slice(&body_bytes.to_le_bytes());
        record.extend_from_slice(&raw.to_le_bytes());
        record.extend_from_slice(&head);
        record.extend_from_slice(body);
        let sum = crc32(&record[at + 4..], seed);
        record[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        Some((PyBytes::new(py, &record), frame))
    }))
}

/// A row of the local log with a small value. None for another one.
#[pyfunction]
pub fn pack_row<'py>(
    py: Python<'py>,
    position: u64,
    kind: u8,
    key: &[u8],
    value: &Bound<'py, PyAny>,
    seed: u32,
) -> Option<Bound<'py, PyBytes>> {
    with_bytes(value, |value| {
        if value.len() > WHOLE {
            return None;
        }
        let length = u16::try_from(key.len()).ok()?;
        let mut row = Vec::with_capacity(20 + key.len() + value.len());
        row.extend_from_slice(&[0; 4]);
        row.extend_from_slice(&(value.len() as u32).to_le_bytes());
        row.extend_from_slice(&position.to_le_bytes());
        row.extend_from_slice(&length.to_le_bytes());
        row.extend_from_slice(&[kind, 0]);
        row.extend_from_slice(key);
        row.extend_from_slice(value);
        let sum = crc32(&row[4..], seed);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        Some(PyBytes::new(py, &row))
    })
}
