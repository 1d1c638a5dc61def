//! Records of the log, as bytes: see streamkit/log/record_format.py and backends/streamkit_local/record.py.

use std::collections::HashMap;
use std::ops::Range;

use pyo3::exceptions::PyMemoryError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};

use crate::body;
use crate::bytes::{Writer, crc32, some, u32_at, u64_at, with_bytes};
use crate::msgpack::Input;
use crate::structs::Struct;

const VERSION: u8 = 2;
const MAGIC: &[u8] = b"SKTX";
const HEADER_AT: usize = 24;
const FRAME: usize = 16;
/// The bits of a partition's seed that are in the ids of its transactions: see streamkit/log/ids.py.
const TAG: u32 = (1 << 24) - 1;
/// A row of the local log is checked as a whole up to this size.
pub const WHOLE: usize = 16 << 10;
/// The value of a larger one has a checksum for so many bytes.
const BLOCK: usize = 4096;

/// Bytes of frames. Larger ones are joined in Python, which makes one copy less.
const MOST: usize = 4 << 20;

/// msgpack as msgspec writes it: every value in as few bytes as possible.
pub struct Output {
    pub bytes: Vec<u8>,
}

impl Output {
    pub fn unsigned(&mut self, number: u64) {
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

    /// None if it is too large for msgpack.
    pub fn bin(&mut self, data: &[u8]) -> Option<()> {
        let length = u32::try_from(data.len()).ok()?;
        match length {
            0..=0xff => self.bytes.extend_from_slice(&[0xc4, length as u8]),
            0x100..=0xffff => {
                self.bytes.push(0xc5);
                self.bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                self.bytes.push(0xc6);
                self.bytes.extend_from_slice(&length.to_be_bytes());
            }
        }
        self.bytes.extend_from_slice(data);
        Some(())
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

    /// The beginning of a record of so many frames: room for what checks it, and its header up to the frames.
    fn header(number: u64, timestamp: u64, id: &[u8], node: &[u8], position: u64, frames: u16) -> Self {
        let mut record = Output { bytes: Vec::with_capacity(HEADER_AT + 160 + 160 * frames as usize) };
        record.bytes.resize(HEADER_AT, 0);
        record.bytes.push(0x9d);
        record.unsigned(number);
        record.unsigned(timestamp);
        record.short_bin(id);
        record.short_bin(node);
        record.unsigned(position);
        match frames {
            0..=15 => record.bytes.push(0x90 | frames as u8),
            _ => {
                record.bytes.push(0xdc);
                record.bytes.extend_from_slice(&frames.to_be_bytes());
            }
        }
        record
    }

    fn frame_ref(&mut self, segment: &str, numbers: &Numbers, start: usize, length: usize) {
        self.bytes.push(0x97);
        self.str(segment);
        self.unsigned(numbers.first);
        self.unsigned(numbers.count);
        self.unsigned(start as u64);
        self.unsigned(length as u64);
        self.unsigned(numbers.before);
        self.unsigned(numbers.given);
    }

    /// All of a record up to its frames, which have `length` bytes.
    fn record_front(mut self, size: u64, length: usize, seed: u32) -> Option<Vec<u8>> {
        // No keys, fences, answers, lead or waiting processes.
        self.bytes.extend_from_slice(&[0x90, 0x80, 0x90, 0xc4, 0, 0]);
        self.unsigned(size);
        self.bytes.push(0xc0);
        let mut front = self.bytes;
        let header = u32::try_from(front.len() - HEADER_AT).ok()?;
        let whole = front.len() + length;
        front[..4].copy_from_slice(MAGIC);
        front[8] = VERSION;
        front[12..16].copy_from_slice(&header.to_le_bytes());
        front[16..24].copy_from_slice(&(whole as u64).to_le_bytes());
        let sum = crc32(&front[8..], seed);
        front[4..8].copy_from_slice(&sum.to_le_bytes());
        Some(front)
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

/// A number that fits, of an int.
pub fn unsigned(object: &Bound<'_, PyAny>) -> Option<u64> {
    object.cast_exact::<PyInt>().ok()?.extract().ok()
}

/// Checks and encodes the records of a segment that are written together.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Parts {
    record: Struct<3>,
    part: Struct<4>,
    body: Struct<6>,
    small: usize,
}

#[pymethods]
impl Parts {
    /// A body of `small` bytes or more may be compressed: it is left to Python.
    #[new]
    fn new(py: Python<'_>, record: Py<PyType>, part: Py<PyType>, body: Py<PyType>, small: usize) -> PyResult<Self> {
        Ok(Parts { record: Struct::new(py, record)?, part: Struct::new(py, part)?, body: Struct::new(py, body)?, small })
    }

    /// True if all values are made, and read, without calls of their classes.
    #[getter]
    fn is_direct(&self) -> bool {
        self.record.is_direct() && self.part.is_direct() && self.body.is_direct()
    }

    /// See body::encode.
    fn encode<'py>(
        &self,
        records: &Bound<'py, PyAny>,
        most: usize,
        digest: bool,
    ) -> Option<(Bound<'py, PyBytes>, u8, usize, usize)> {
        body::encode(&self.record, records.cast_exact::<PyList>().ok()?, most, digest)
    }

    /// The part of a request that writes a list of one record with a payload alone, if the names are plain ASCII. None
    /// where Python has to decide.
    fn lone<'py>(
        &self,
        py: Python<'py>,
        space: &Bound<'py, PyAny>,
        segment: &Bound<'py, PyAny>,
        records: &Bound<'py, PyAny>,
        most: usize,
        expected: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let expects = expected.is_none() || expected.cast_exact::<PyInt>().is_ok_and(|number| number.ge(0).unwrap_or(false));
        if !(expects && is_plain(space) && is_plain(segment)) {
            return Ok(None);
        }
        let Ok(records) = records.cast_exact::<PyList>() else { return Ok(None) };
        if records.len() != 1 {
            return Ok(None);
        }
        let Some([payload, metadata, sequence]) = self.record.fields(&records.get_item(0)?) else { return Ok(None) };
        let Ok(payload) = payload.cast_into_exact::<PyBytes>() else { return Ok(None) };
        let payload = payload.as_bytes();
        let length = payload.len();
        if !metadata.is_none() || !sequence.is_none() || length > most || length > u16::MAX as usize {
            return Ok(None);
        }
        let head: &[u8] = match length {
            0..=255 => &[0x91, 0x91, 0xc4, length as u8],
            _ => &[0x91, 0x91, 0xc5, (length >> 8) as u8, length as u8],
        };
        let raw = head.len() + length;
        if raw >= self.small {
            return Ok(None);
        }
        let Some(mut data) = Writer::new(py, raw) else { return Ok(None) };
        data.add(head);
        data.add(payload);
        let data = data.finish();
        let int = |number: usize| PyInt::new(py, number).into_any();
        let body =
            self.body.make(py, [data.into_any(), int(raw), int(0), int(1), PyBytes::new(py, b"").into_any(), int(0)])?;
        let part = [segment.clone(), body, int(length), expected.clone()];
        Ok(Some(self.part.make(py, part)?))
    }
}

/// True for a legal name of printable ASCII characters alone. Others may be legal, too.
fn is_plain(name: &Bound<'_, PyAny>) -> bool {
    let Ok(name) = name.cast_exact::<PyString>() else { return false };
    let Ok(name) = name.to_cow() else { return false };
    matches!(name.len(), 1..=255) && *name != *"*" && name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Encodes the transactions of one partition that have one frame and nothing else.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct LoneEncoder {
    row: Struct<9>,
    piece: Struct<9>,
    part: Struct<4>,
    body: Struct<6>,
    trx: Struct<3>,
    position: Struct<7>,
    status: Struct<8>,
    space: Py<PyAny>,
    partition: Py<PyAny>,
    incarnation: Py<PyAny>,
    /// It is the only partition of its space.
    single: bool,
    seed: u32,
    prefix: Vec<u8>,
    copied: usize,
}

type Classes = (Py<PyType>, Py<PyType>, Py<PyType>, Py<PyType>, Py<PyType>, Py<PyType>, Py<PyType>);

#[pymethods]
impl LoneEncoder {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        classes: Classes,
        space: Py<PyAny>,
        partition: Py<PyAny>,
        incarnation: Py<PyAny>,
        single: bool,
        seed: u32,
        prefix: Vec<u8>,
        copied: usize,
    ) -> PyResult<Self> {
        let (row, piece, part, body, trx, position, status) = classes;
        Ok(LoneEncoder {
            row: Struct::new(py, row)?,
            piece: Struct::new(py, piece)?,
            part: Struct::new(py, part)?,
            body: Struct::new(py, body)?,
            trx: Struct::new(py, trx)?,
            position: Struct::new(py, position)?,
            status: Struct::new(py, status)?,
            space,
            partition,
            incarnation,
            single,
            seed,
            prefix,
            copied,
        })
    }

    /// True if all values are made, and read, without calls of their classes.
    #[getter]
    fn is_direct(&self) -> bool {
        self.row.is_direct()
            && self.piece.is_direct()
            && self.part.is_direct()
            && self.body.is_direct()
            && self.trx.is_direct()
            && self.position.is_direct()
            && self.status.is_direct()
    }

    /// (key, record, row, piece, trx, status) of the transaction after `number`, or None where Python has to decide.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = some)] now: Option<u64>,
        #[pyo3(from_py_with = some)] drawn: Option<u64>,
        node: &Bound<'py, PyBytes>,
        timestamp: &Bound<'py, PyAny>,
        base: &Bound<'py, PyTuple>,
        part: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some([segment, body, given, _]) = self.part.borrowed(part) else { return Ok(None) };
        let at = |index| base.get_borrowed_item(index);
        let (row, number, position, size) = (at(0)?, at(1)?, at(3)?, at(4)?);
        let (Some(row), Some(body)) = (self.row.borrowed(&row), self.body.borrowed(&body)) else { return Ok(None) };
        let Ok(segment) = segment.cast::<PyString>() else { return Ok(None) };
        let Ok(name) = segment.to_cow() else { return Ok(None) };
        let Some(numbers) = Numbers::of(timestamp, &number, &position, &size, &row, &body, &given) else {
            return Ok(None);
        };
        let Some(id) = transaction_id(now, self.seed & TAG, drawn) else { return Ok(None) };
        let Some((record, frame)) =
            with_bytes(&body[0], |data| lone_record(py, &numbers, &id, node.as_bytes(), &name, data, self.seed))
        else {
            return Ok(None);
        };
        let trx = self.trx.make(py, [PyBytes::new(py, &id).into_any(), node.clone().into_any(), int(py, numbers.number)])?;
        let start = record.as_bytes().len() - frame;
        let count = body[3].to_owned();
        let made = Made { record: &record, trx: &trx, timestamp, total: &count };
        let place = start..start + frame;
        let (after, piece, status) = self.after(py, &made, &numbers, &row, &segment, &given, count.clone(), place)?;
        let key = self.key(py, numbers.number);
        Ok(Some(PyTuple::new(py, [key.into_any(), record.into_any(), after, piece, trx, status])?))
    }

    /// See LoneEncoder.read in streamkit/log/lone.py. Records of up to `most` bytes. None if there is none.
    fn read<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyList>,
        number: u64,
        most: usize,
    ) -> PyResult<Option<Read<'py>>> {
        let (pieces, timestamps) = (PyDict::new(py), PyList::empty(py));
        let mut segments = HashMap::<String, (Bound<'py, PyList>, u64)>::new();
        let mut time: Option<(u64, Bound<'py, PyAny>)> = None;
        let (mut done, mut end) = (0, None);
        for row in rows.iter() {
            let Ok(row) = row.cast_into_exact::<PyTuple>() else { break };
            let Ok(record) = row.get_item(1)?.cast_into_exact::<PyBytes>() else { break };
            let data = record.as_bytes();
            let Some(header) = LoneHeader::of(data, self.seed) else { break };
            if data.len() > most || Some(header.number) != number.checked_add(done as u64 + 1) {
                break;
            }
            let named = row.get_item(0)?;
            if unsigned(&named) != Some(header.number) {
                break;
            }
            let timestamp = match time.take() {
                Some((known, timestamp)) if known == header.timestamp => timestamp,
                _ => int(py, header.timestamp),
            };
            let start = data.len() - header.length;
            let frame = if header.length <= self.copied {
                PyBytes::new(py, &data[start..]).into_any()
            } else {
                py.None().into_bound(py)
            };
            let piece = self.piece.make(
                py,
                [
                    named,
                    timestamp.clone(),
                    int(py, header.first),
                    int(py, header.count),
                    int(py, start as u64),
                    int(py, header.length as u64),
                    frame,
                    int(py, header.before),
                    int(py, header.given),
                ],
            )?;
            let last = header.first + header.count - 1;
            if let Some((list, known)) = segments.get_mut(header.segment) {
                if *known >= header.first {
                    break;
                }
                list.append(piece)?;
                *known = last;
            } else {
                let list = PyList::new(py, [piece])?;
                pieces.set_item(header.segment, &list)?;
                segments.insert(header.segment.to_owned(), (list, last));
            }
            if timestamps.is_empty() || !timestamps.get_item(timestamps.len() - 1)?.is(&timestamp) {
                timestamps.append(&timestamp)?;
            }
            time = Some((header.timestamp, timestamp));
            end = Some((header.position + header.count, header.size + header.given, header.count));
            done += 1;
        }
        Ok(end.map(|(position, size, count)| (done, pieces, timestamps, position, size, count)))
    }

    /// (key, record, rows, pieces, trx, statuses) of the transaction after `number` that has a frame for each of `parts`
    /// and nothing else, or None where Python has to decide. `rows`: the status of each segment; no two are the same.
    #[allow(clippy::too_many_arguments)]
    fn encode_shared<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = some)] now: Option<u64>,
        #[pyo3(from_py_with = some)] drawn: Option<u64>,
        node: &Bound<'py, PyBytes>,
        timestamp: &Bound<'py, PyAny>,
        number: &Bound<'py, PyAny>,
        position: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyList>,
        parts: &Bound<'py, PyList>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(id) = transaction_id(now, self.seed & TAG, drawn) else { return Ok(None) };
        let mut frames = Output { bytes: Vec::with_capacity(512 * parts.len()) };
        let mut writes = Vec::with_capacity(parts.len());
        let mut total = 0u64;
        for (row, part) in rows.iter().zip(parts.iter()) {
            let (Some(before), Some([segment, body, given, _])) = (self.row.borrowed(&row), self.part.fields(&part)) else {
                return Ok(None);
            };
            let (Some(body), Ok(segment)) = (self.body.borrowed(&body), segment.cast_into::<PyString>()) else {
                return Ok(None);
            };
            let Some(numbers) = Numbers::of(timestamp, number, position, size, &before, &body, &given) else {
                return Ok(None);
            };
            let at = frames.bytes.len();
            let added = segment.to_cow().ok().and_then(|name| {
                with_bytes(&body[0], |data| numbers.frame(&mut frames, total, &id, node.as_bytes(), &name, data, self.seed))
            });
            if added.is_none() || frames.bytes.len() > MOST {
                return Ok(None);
            }
            total += numbers.count;
            let count = body[3].to_owned();
            writes.push((numbers, row, segment, given, count, at..frames.bytes.len()));
        }
        let Some(front) = shared_front(&writes, &id, node.as_bytes(), frames.bytes.len(), self.seed) else {
            return Ok(None);
        };
        let mut record = Writer::new(py, front.len() + frames.bytes.len()).ok_or_else(|| PyMemoryError::new_err(()))?;
        record.add(&front);
        record.add(&frames.bytes);
        let record = record.finish();
        let number = writes[0].0.number;
        let trx = self.trx.make(py, [PyBytes::new(py, &id).into_any(), node.clone().into_any(), int(py, number)])?;
        let total = int(py, total);
        let made = Made { record: &record, trx: &trx, timestamp, total: &total };
        let (after, pieces, statuses) = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
        for (numbers, row, segment, given, count, frame) in writes {
            let place = front.len() + frame.start..front.len() + frame.end;
            let Some(row) = self.row.borrowed(&row) else { return Ok(None) };
            let (row, piece, status) = self.after(py, &made, &numbers, &row, &segment, &given, count, place)?;
            after.append(row)?;
            pieces.append(piece)?;
            statuses.append(status)?;
        }
        let key = self.key(py, number).into_any();
        let lists = [after.into_any(), pieces.into_any(), trx, statuses.into_any()];
        Ok(Some(PyTuple::new(py, [key, record.into_any()].into_iter().chain(lists).collect::<Vec<_>>())?))
    }
}

/// The transactions that `LoneEncoder::read` has read: how many, the pieces of each segment, each of their timestamps once,
/// and the position, the size and the count of the last one.
type Read<'py> = (usize, Bound<'py, PyDict>, Bound<'py, PyList>, u64, u64, u64);

/// The header of a transaction that has one frame and nothing else.
struct LoneHeader<'a> {
    number: u64,
    timestamp: u64,
    position: u64,
    segment: &'a str,
    first: u64,
    count: u64,
    length: usize,
    before: u64,
    given: u64,
    size: u64,
}

impl<'a> LoneHeader<'a> {
    /// None for another transaction, and for a damaged one.
    fn of(record: &'a [u8], seed: u32) -> Option<Self> {
        let end = HEADER_AT.checked_add(u32_at(record, 12)? as usize)?;
        let checked = record.get(8..end)?;
        let whole = checked[0] == VERSION && u64_at(record, 16)? == record.len() as u64;
        if !whole || !record.starts_with(MAGIC) || u32_at(record, 4)? != crc32(checked, seed) {
            return None;
        }
        let mut input = Input::new(&record[HEADER_AT..end]);
        let fields = input.array()?;
        let (number, timestamp) = (input.unsigned()?, input.unsigned()?);
        let (_id, _node) = (input.bin()?, input.bin()?);
        let position = input.unsigned()?;
        let (frames, parts) = (input.array()?, input.array()?);
        let segment = input.str()?;
        let (first, count) = (input.unsigned()?, input.unsigned()?);
        let (start, length) = (input.unsigned()?, usize::try_from(input.unsigned()?).ok()?);
        let (before, given) = (input.unsigned()?, input.unsigned()?);
        let plain = (fields, frames, parts, start) == (13, 1, 7, 0)
            && (input.array()?, input.map_or_nil()?, input.array()?) == (0, Some(0), 0)
            && (input.bin()?, input.unsigned()?) == (b"", 0);
        let size = input.unsigned()?;
        let ends = input.map_or_nil()?.is_none() && input.is_empty() && end.checked_add(length)? == record.len();
        (plain && ends && first > 0 && count > 0).then_some(LoneHeader {
            number,
            timestamp,
            position,
            segment,
            first,
            count,
            length,
            before,
            given,
            size,
        })
    }
}

/// A transaction that was made: `total` is the number of its entries.
struct Made<'a, 'py> {
    record: &'a Bound<'py, PyBytes>,
    trx: &'a Bound<'py, PyAny>,
    timestamp: &'a Bound<'py, PyAny>,
    total: &'a Bound<'py, PyAny>,
}

/// What is known of one frame: its numbers, the row before it, its segment, bytes of payload and count, and its place.
type Written<'py> =
    (Numbers, Bound<'py, PyAny>, Bound<'py, PyString>, Bound<'py, PyAny>, Bound<'py, PyAny>, Range<usize>);

fn int(py: Python<'_>, number: u64) -> Bound<'_, PyAny> {
    PyInt::new(py, number).into_any()
}

impl LoneEncoder {
    fn key<'py>(&self, py: Python<'py>, number: u64) -> Bound<'py, PyBytes> {
        let mut key = Vec::with_capacity(self.prefix.len() + 8);
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(&number.to_be_bytes());
        PyBytes::new(py, &key)
    }

    /// What follows from one frame of a transaction, which is at `place` in the record: the row of its segment, its
    /// piece, and the status that its caller gets.
    #[allow(clippy::too_many_arguments)]
    fn after<'py>(
        &self,
        py: Python<'py>,
        made: &Made<'_, 'py>,
        numbers: &Numbers,
        row: &[Borrowed<'_, 'py, PyAny>; 9],
        segment: &Bound<'py, PyString>,
        given: &Bound<'py, PyAny>,
        count_: Bound<'py, PyAny>,
        place: Range<usize>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let &Numbers { number, first, count, before, given: added, .. } = numbers;
        let [first_sequence, first_timestamp, _, _, first_number, _, size, first_size, gaps] = *row;
        let int = |number: u64| int(py, number);
        let or = |value: &Bound<'py, PyAny>, other: &Bound<'py, PyAny>| -> PyResult<_> {
            Ok(if value.is_truthy()? { value.clone() } else { other.clone() })
        };
        let timestamp = made.timestamp.clone();
        let (number_, first_, last) = (int(number), int(first), int(first + count - 1));
        let none = if first_timestamp.is_truthy()? { int(0) } else { number_.clone() };
        let first_sequence = or(&first_sequence, &first_)?;
        let first_timestamp = or(&first_timestamp, &timestamp)?;
        let first_number = or(&first_number, &none)?;
        let after = self.row.make(
            py,
            [
                first_sequence.clone(),
                first_timestamp.clone(),
                last.clone(),
                timestamp.clone(),
                first_number,
                number_.clone(),
                int(before + added),
                first_size.to_owned(),
                gaps.to_owned(),
            ],
        )?;
        let (start, frame) = (place.start, place.len());
        let copy = if frame <= self.copied {
            PyBytes::new(py, &made.record.as_bytes()[place]).into_any()
        } else {
            py.None().into_bound(py)
        };
        let piece = self.piece.make(
            py,
            [
                number_.clone(),
                timestamp.clone(),
                first_,
                count_.clone(),
                int(start as u64),
                int(frame as u64),
                copy,
                size.to_owned(),
                given.clone(),
            ],
        )?;
        let none = || py.None().into_bound(py);
        let status = if self.single {
            let (partition, incarnation) = (self.partition.bind(py).clone(), self.incarnation.bind(py).clone());
            let place = [partition, int(1), timestamp.clone(), number_, made.total.clone(), incarnation, none()];
            let position = self.position.make(py, place)?;
            let (space, segment) = (self.space.bind(py).clone(), segment.clone().into_any());
            let (first, at) = (first_sequence, first_timestamp);
            self.status.make(py, [space, segment, first, at, last, timestamp, made.trx.clone(), position])?
        } else {
            none()
        };
        Ok((after, piece, status))
    }
}

/// What a transaction with one frame says in numbers.
struct Numbers {
    number: u64,
    timestamp: u64,
    position: u64,
    size: u64,
    first: u64,
    count: u64,
    raw: u32,
    flags: u8,
    before: u64,
    given: u64,
}

impl Numbers {
    /// None if one of them, or of those that are made of them, does not fit.
    fn of(
        timestamp: &Bound<'_, PyAny>,
        number: &Bound<'_, PyAny>,
        position: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        row: &[Borrowed<'_, '_, PyAny>; 9],
        body: &[Borrowed<'_, '_, PyAny>; 6],
        given: &Bound<'_, PyAny>,
    ) -> Option<Self> {
        let numbers = Numbers {
            number: unsigned(number)?.checked_add(1)?,
            timestamp: unsigned(timestamp)?,
            position: unsigned(position)?,
            size: unsigned(size)?,
            first: unsigned(&row[2])?.checked_add(1)?,
            count: unsigned(&body[3])?,
            raw: u32::try_from(unsigned(&body[1])?).ok()?,
            flags: u8::try_from(unsigned(&body[2])?).ok()?,
            before: unsigned(&row[6])?,
            given: unsigned(given)?,
        };
        numbers.first.checked_add(numbers.count)?;
        numbers.before.checked_add(numbers.given)?;
        Some(numbers)
    }

    /// Adds the frame to those of a transaction that have `index` entries.
    #[allow(clippy::too_many_arguments)]
    fn frame(
        &self,
        out: &mut Output,
        index: u64,
        id: &[u8],
        node: &[u8],
        segment: &str,
        body: &[u8],
        seed: u32,
    ) -> Option<()> {
        if node.len() > 255 || segment.len() > 4096 {
            return None;
        }
        let &Numbers { number, timestamp, position, first, count, raw, flags, .. } = self;
        let common = Common { number, timestamp, id, node };
        index.checked_add(count)?;
        common.front(out, position.checked_add(index)?, index, segment, first, count, body, raw, flags, seed)?;
        out.bytes.extend_from_slice(body);
        Some(())
    }
}

/// A version 7 UUID: see `id_of` in streamkit/log/ids.py.
fn transaction_id(now: Option<u64>, tag: u32, drawn: Option<u64>) -> Option<[u8; 16]> {
    let now = now.filter(|now| now >> 48 == 0)?;
    let drawn = drawn.filter(|drawn| drawn >> 49 == 0)?;
    let front = now << 16 | 0x7 << 12 | drawn >> 37;
    let back = (0x80 | drawn >> 32 & 0x1f) << 56 | u64::from(tag) << 32 | drawn & 0xffff_ffff;
    let mut id = [0; 16];
    id[..8].copy_from_slice(&front.to_be_bytes());
    id[8..].copy_from_slice(&back.to_be_bytes());
    Some(id)
}

/// The record of a transaction with one frame and nothing else, and the bytes of the frame.
fn lone_record<'py>(
    py: Python<'py>,
    numbers: &Numbers,
    id: &[u8],
    node: &[u8],
    segment: &str,
    body: &[u8],
    seed: u32,
) -> Option<(Bound<'py, PyBytes>, usize)> {
    if id.len() > 255 || node.len() > 255 || segment.len() > 4096 {
        return None;
    }
    let &Numbers { number, timestamp, position, first, count, raw, flags, size, .. } = numbers;
    let mut head = Output { bytes: Vec::with_capacity(128 + segment.len()) };
    let common = Common { number, timestamp, id, node };
    common.front(&mut head, position, 0, segment, first, count, body, raw, flags, seed)?;
    let head = head.bytes;
    let frame = head.len() + body.len();
    let mut record = Output::header(number, timestamp, id, node, position, 1);
    record.frame_ref(segment, numbers, 0, frame);
    let mut front = record.record_front(size, frame, seed)?;
    let whole = front.len() + frame;
    front.extend_from_slice(&head);
    let mut record = Writer::new(py, whole)?;
    record.add(&front);
    record.add(body);
    Some((record.finish(), frame))
}

/// The front of the record of a transaction with these frames, of `length` bytes in all, and nothing else.
fn shared_front(writes: &[Written<'_>], id: &[u8], node: &[u8], length: usize, seed: u32) -> Option<Vec<u8>> {
    let &Numbers { number, timestamp, position, size, .. } = &writes.first()?.0;
    let mut record = Output::header(number, timestamp, id, node, position, u16::try_from(writes.len()).ok()?);
    for (numbers, _, segment, _, _, place) in writes {
        record.frame_ref(&segment.to_cow().ok()?, numbers, place.start, place.len());
    }
    record.record_front(size, length, seed)
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
    with_bytes(value, |value| row(py, position?, kind, key, value, seed))
}

/// See `pack_row`.
pub fn row<'py>(
    py: Python<'py>,
    position: u64,
    kind: u8,
    key: &[u8],
    value: &[u8],
    seed: u32,
) -> Option<Bound<'py, PyBytes>> {
    let length = u16::try_from(key.len()).ok()?;
    let size = u32::try_from(value.len()).ok()?;
    let mut head = Vec::with_capacity(20 + key.len());
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&size.to_le_bytes());
    head.extend_from_slice(&position.to_le_bytes());
    head.extend_from_slice(&length.to_le_bytes());
    head.extend_from_slice(&[kind, 0]);
    head.extend_from_slice(key);
    let sums: Vec<u8>;
    let rest = if value.len() <= WHOLE {
        value
    } else {
        sums = value.chunks(BLOCK).flat_map(|block| crc32(block, 0).to_le_bytes()).collect();
        &sums
    };
    let sum = crc32(rest, crc32(&head[4..], seed));
    head[..4].copy_from_slice(&sum.to_le_bytes());
    let mut row = Writer::new(py, head.len() + rest.len())?;
    row.add(&head);
    row.add(rest);
    Some(row.finish())
}
