//! Transactions and frames as entries: see streamkit/log/record_format.py.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyIterator, PyList, PyString, PyTuple, PyType};

use crate::bytes::{crc32, u16_at, u32_at, u64_at, with_bytes};
use crate::call::call;
use crate::msgpack::Input;
use crate::zstd;

const VERSION: u8 = 2;
const MAGIC: &[u8] = b"SKTX";
const HEADER_AT: usize = 24;
const FRAME: usize = 16;
const ZSTD: u8 = 1;
const METADATA: u8 = 2;
/// Bytes of a record or frame whose entry is handed out together with others.
const SHORT: usize = 4096;

/// A frame whose checksum is right.
struct Frame<'a> {
    flags: u8,
    raw: usize,
    head: Head<'a>,
    body: &'a [u8],
    after: usize,
}

struct Head<'a> {
    number: u64,
    timestamp: u64,
    id: &'a [u8],
    node: &'a [u8],
    position: u64,
    index: u64,
    segment: &'a str,
    first: u64,
    count: u64,
}

impl<'a> Head<'a> {
    fn decode(data: &'a [u8]) -> Option<Self> {
        let mut input = Input::new(data);
        if input.array()? != 9 {
            return None;
        }
        let head = Head {
            number: input.unsigned()?,
            timestamp: input.unsigned()?,
            id: input.bin()?,
            node: input.bin()?,
            position: input.unsigned()?,
            index: input.unsigned()?,
            segment: input.str()?,
            first: input.unsigned()?,
            count: input.unsigned()?,
        };
        // The sequence after the last one is a number, too.
        let fits = head.first.checked_add(head.count)? <= i64::MAX as u64;
        (input.is_empty() && fits).then_some(head)
    }
}

impl<'a> Frame<'a> {
    fn decode(view: &'a [u8], at: usize, seed: u32) -> Option<Self> {
        let crc = u32_at(view, at)?;
        let head_at = at.checked_add(FRAME)?;
        let front = view.get(at..head_at)?;
        let body_at = head_at.checked_add(u16_at(front, 4)?)?;
        let after = body_at.checked_add(u32_at(front, 8)? as usize)?;
        if crc32(view.get(at + 4..after)?, seed) != crc {
            return None;
        }
        let head = Head::decode(view.get(head_at..body_at)?)?;
        Some(Frame { flags: front[6], raw: u32_at(front, 12)? as usize, head, body: view.get(body_at..after)?, after })
    }

    /// The payload, if there is one and nothing else.
    fn lone(&self) -> Option<&'a [u8]> {
        if self.flags != 0 || self.raw != self.body.len() || self.head.count != 1 {
            return None;
        }
        let mut input = Input::new(self.body);
        if input.array()? != 1 || input.array()? != 1 {
            return None;
        }
        let payload = input.bin()?;
        input.is_empty().then_some(payload)
    }
}

/// Where the frame of a record with one frame begins. None for other records.
fn lone_frame(record: &[u8], seed: u32) -> Option<usize> {
    if record.len() <= HEADER_AT || !record.starts_with(MAGIC) {
        return None;
    }
    let at = HEADER_AT.checked_add(u32_at(record, 12)? as usize)?;
    let right = u64_at(record, 16)? == record.len() as u64
        && (1..=VERSION).contains(&record[8])
        && crc32(record.get(8..at)?, seed) == u32_at(record, 4)?;
    right.then_some(at)
}

/// The classes of streamkit that entries are made of.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Records {
    entry: Py<PyType>,
    trx: Py<PyType>,
    origin: Py<PyType>,
    head: Py<PyType>,
    metadata: Py<PyType>,
    no_metadata: Py<PyAny>,
}

/// What all entries of one reading share.
struct Place<'a, 'py> {
    space: &'a Bound<'py, PyAny>,
    partition: &'a Bound<'py, PyAny>,
    partitions: &'a Bound<'py, PyAny>,
    incarnation: &'a Bound<'py, PyAny>,
}

fn int<'py>(py: Python<'py>, number: u64) -> Bound<'py, PyAny> {
    PyInt::new(py, number).into_any()
}

impl Records {
    fn origin<'py>(&self, py: Python<'py>, place: &Place<'_, 'py>, head: &Head<'_>) -> PyResult<Bound<'py, PyAny>> {
        let Place { partition, partitions, incarnation, .. } = place;
        let (position, index, first) = (int(py, head.position), int(py, head.index), int(py, head.first));
        let (hot, watermark, others) = (intern!(py, "hot").as_any(), int(py, 0), py.None().into_bound(py));
        let class = self.origin.bind(py);
        call(class, [partition, partitions, &position, &index, &first, hot, &watermark, &others, incarnation])
    }

    fn trx<'py>(
        &self,
        py: Python<'py>,
        head: &Head<'_>,
        node: &Bound<'py, PyAny>,
        number: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(self.trx.bind(py), [PyBytes::new(py, head.id).as_any(), node, number])
    }

    /// (end of the frame, (head, origin, entries from sequence `start`)). None if Python has to decide.
    fn decoded<'py>(
        &self,
        py: Python<'py>,
        place: &Place<'_, 'py>,
        view: &[u8],
        at: usize,
        seed: u32,
        start: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(frame) = Frame::decode(view, at, seed) else { return Ok(None) };
        if frame.flags & !(ZSTD | METADATA) != 0 {
            return Ok(None);
        }
        let grown;
        let content = if frame.flags & ZSTD != 0 {
            let Some(content) = zstd::content_of(frame.body, frame.raw) else { return Ok(None) };
            grown = content;
            &grown[..]
        } else {
            frame.body
        };
        if content.len() != frame.raw {
            return Ok(None);
        }
        let Some(body) = Body::decode(content, frame.flags, frame.head.count) else { return Ok(None) };
        let head = &frame.head;
        let (segment, timestamp) = (PyString::new(py, head.segment).into_any(), int(py, head.timestamp));
        let number = int(py, head.number);
        let node = PyBytes::new(py, head.node).into_any();
        let origin = self.origin(py, place, head)?;
        let trx = self.trx(py, head, &node, &number)?;
        let skipped = usize::try_from(start.saturating_sub(head.first)).unwrap_or(usize::MAX);
        let entries = PyList::empty(py);
        let mut told = body.metadata;
        let class = self.entry.bind(py);
        for (at, payload) in body.payloads.iter().enumerate() {
            let metadata = match &mut told {
                None => self.no_metadata.bind(py).clone(),
                Some(input) => match self.metadata(py, input)? {
                    None => return Ok(None),
                    Some(metadata) => metadata,
                },
            };
            if at >= skipped {
                let (sequence, payload) = (int(py, head.first + at as u64), PyBytes::new(py, payload));
                let entry = call(
                    class,
                    [place.space, &segment, &sequence, &timestamp, &trx, payload.as_any(), &metadata, &origin],
                )?;
                entries.append(entry)?;
            }
        }
        if told.is_some_and(|input| !input.is_empty()) {
            return Ok(None);
        }
        let id = trx.getattr(intern!(py, "raw_id"))?;
        let (position, index) = (int(py, head.position), int(py, head.index));
        let (first, count) = (int(py, head.first), int(py, head.count));
        let class = self.head.bind(py);
        let head =
            call(class, [&number, &timestamp, &id, &node, &position, &index, &segment, &first, &count])?;
        let found = PyTuple::new(py, [head, origin, entries.into_any()])?;
        Ok(Some(PyTuple::new(py, [int(py, frame.after as u64), found.into_any()])?.into_any()))
    }

    /// The metadata of the next entry. None if it is not what an encoder writes.
    fn metadata<'py>(&self, py: Python<'py>, input: &mut Input<'_>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(given) = input.map_or_nil() else { return Ok(None) };
        let pairs = given.unwrap_or(0);
        if pairs == 0 {
            return Ok(Some(self.no_metadata.bind(py).clone()));
        }
        let made = PyDict::new(py);
        for _ in 0..pairs {
            let (Some(name), Some(value)) = (input.str(), input.str()) else { return Ok(None) };
            made.set_item(name, value)?;
        }
        Ok(Some(call(self.metadata.bind(py), [made.as_any()])?))
    }
}

struct Body<'a> {
    payloads: Vec<&'a [u8]>,
    /// What follows the length of the metadata's array, if there is metadata.
    metadata: Option<Input<'a>>,
}

impl<'a> Body<'a> {
    fn decode(content: &'a [u8], flags: u8, count: u64) -> Option<Self> {
        let mut input = Input::new(content);
        let has_metadata = flags & METADATA != 0;
        if input.array()? != 1 + usize::from(has_metadata) {
            return None;
        }
        let length = input.array()?;
        if length as u64 != count || length > content.len() {
            return None;
        }
        let mut payloads = Vec::new();
        payloads.try_reserve_exact(length).ok()?;
        for _ in 0..length {
            payloads.push(input.bin()?);
        }
        if has_metadata {
            return (input.array()? == length).then_some(Body { payloads, metadata: Some(input) });
        }
        input.is_empty().then_some(Body { payloads, metadata: None })
    }
}

#[pymethods]
impl Records {
    #[new]
    fn new(
        entry: Py<PyType>,
        trx: Py<PyType>,
        origin: Py<PyType>,
        head: Py<PyType>,
        metadata: Py<PyType>,
        no_metadata: Py<PyAny>,
    ) -> Self {
        Records { entry, trx, origin, head, metadata, no_metadata }
    }

    /// A reader of one partition: of records, or of one segment's frames.
    #[pyo3(signature = (space, partition, partitions, seed, incarnation, segment = None))]
    #[allow(clippy::too_many_arguments)]
    fn reader(
        slf: Py<Self>,
        space: Py<PyAny>,
        partition: Py<PyAny>,
        partitions: Py<PyAny>,
        seed: u32,
        incarnation: Py<PyAny>,
        segment: Option<Py<PyString>>,
    ) -> Reader {
        Reader { records: slf, space, partition, partitions, seed, incarnation, segment }
    }

    /// (end, (head, origin, entries)) of the frame at `at`, without the entries before sequence `start`; None if it is
    /// damaged, or of a kind that is left to Python.
    #[allow(clippy::too_many_arguments)]
    fn decode_at<'py>(
        &self,
        py: Python<'py>,
        space: &Bound<'py, PyAny>,
        partition: &Bound<'py, PyAny>,
        partitions: &Bound<'py, PyAny>,
        view: &Bound<'py, PyAny>,
        at: usize,
        seed: u32,
        start: u64,
        incarnation: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let place = Place { space, partition, partitions, incarnation };
        with_bytes(view, |view| self.decoded(py, &place, view, at, seed, start).transpose()).transpose()
    }
}

/// Makes entries of an iterator's small transactions, or of its frames of one segment.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Reader {
    records: Py<Records>,
    space: Py<PyAny>,
    partition: Py<PyAny>,
    partitions: Py<PyAny>,
    seed: u32,
    incarnation: Py<PyAny>,
    /// The segment of all frames; None: whole records are read.
    segment: Option<Py<PyString>>,
}

/// Values that consecutive transactions have in common, as Python objects.
#[derive(Default)]
struct Same<'py> {
    node: Option<Bound<'py, PyBytes>>,
    segment: Option<(Bound<'py, PyString>, String)>,
}

impl<'py> Same<'py> {
    fn node(&mut self, py: Python<'py>, node: &[u8]) -> Bound<'py, PyAny> {
        match &self.node {
            Some(kept) if kept.as_bytes() == node => kept.clone().into_any(),
            _ => self.node.insert(PyBytes::new(py, node)).clone().into_any(),
        }
    }

    fn segment(&mut self, py: Python<'py>, segment: &str) -> Bound<'py, PyAny> {
        match &self.segment {
            Some((kept, text)) if text == segment => kept.clone().into_any(),
            _ => self.segment.insert((PyString::new(py, segment), segment.to_owned())).0.clone().into_any(),
        }
    }
}

#[pymethods]
impl Reader {
    /// Appends the entries of the next items to `entries` while each holds one small entry, until there are `most`.
    ///
    /// The first other item, which is taken from the iterator; None after `most`, or at the end.
    fn take<'py>(
        &self,
        py: Python<'py>,
        items: &Bound<'py, PyAny>,
        entries: &Bound<'py, PyList>,
        most: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let records = self.records.get();
        let items = items.cast::<PyIterator>()?;
        let place = Place {
            space: self.space.bind(py),
            partition: self.partition.bind(py),
            partitions: self.partitions.bind(py),
            incarnation: self.incarnation.bind(py),
        };
        let mut same = Same::default();
        let class = records.entry.bind(py).as_any();
        let wanted = match &self.segment {
            None => None,
            Some(segment) => Some((segment.bind(py), segment.bind(py).to_cow()?)),
        };
        while entries.len() < most {
            // SAFETY: `items` is an iterator. PyIter_Next returns a new reference, or null with or without an error.
            let item = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyIter_Next(items.as_ptr())) };
            let Some(item) = item else {
                return match PyErr::take(py) {
                    Some(error) => Err(error),
                    None => Ok(None),
                };
            };
            let Ok(tuple) = item.cast::<PyTuple>() else { return Ok(Some(item)) };
            let (number, data, first) = match &wanted {
                None if tuple.len() == 2 => (tuple.get_item(0)?, tuple.get_item(1)?, None),
                Some(_) if tuple.len() == 3 => (tuple.get_item(0)?, tuple.get_item(2)?, Some(tuple.get_item(1)?)),
                _ => return Ok(Some(item)),
            };
            let Ok(bytes) = data.cast::<PyBytes>() else { return Ok(Some(item)) };
            let record = bytes.as_bytes();
            if record.len() > SHORT {
                return Ok(Some(item));
            }
            let at = match &wanted {
                None => lone_frame(record, self.seed),
                Some(_) => Some(0),
            };
            let Some(frame) = at.and_then(|at| Frame::decode(record, at, self.seed)) else { return Ok(Some(item)) };
            let Some(payload) = frame.lone() else { return Ok(Some(item)) };
            let head = &frame.head;
            let right = frame.after == record.len()
                && number.extract::<u64>().is_ok_and(|number| number == head.number)
                && first.is_none_or(|first| first.extract::<u64>().is_ok_and(|first| first == head.first))
                && wanted.as_ref().is_none_or(|(_, text)| *text == head.segment);
            if !right {
                return Ok(Some(item));
            }
            let segment = match &wanted {
                Some((segment, _)) => (*segment).clone().into_any(),
                None => same.segment(py, head.segment),
            };
            let origin = records.origin(py, &place, head)?;
            let node = same.node(py, head.node);
            let trx = records.trx(py, head, &node, &number)?;
            let (sequence, timestamp) = (int(py, head.first), int(py, head.timestamp));
            let payload = PyBytes::new(py, payload);
            let metadata = records.no_metadata.bind(py);
            let entry = call(
                class,
                [place.space, &segment, &sequence, &timestamp, &trx, payload.as_any(), metadata, &origin],
            )?;
            entries.append(entry)?;
        }
        Ok(None)
    }
}
