//! Transactions and frames as entries: see streamkit/log/record_format.py.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyIterator, PyList, PyString, PyTuple, PyType};

use crate::bytes::{crc32, some, u16_at, u32_at, u64_at, with_bytes};
use crate::call::call;
use crate::msgpack::Input;
use crate::rows::Rows;
use crate::structs::Struct;
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
pub struct Frame<'a> {
    flags: u8,
    raw: usize,
    pub head: Head<'a>,
    body: &'a [u8],
    pub after: usize,
}

pub struct Head<'a> {
    pub number: u64,
    timestamp: u64,
    id: &'a [u8],
    node: &'a [u8],
    position: u64,
    index: u64,
    pub segment: &'a str,
    pub first: u64,
    pub count: u64,
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
    pub fn decode(view: &'a [u8], at: usize, seed: u32) -> Option<Self> {
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
    pub fn lone(&self) -> Option<&'a [u8]> {
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
    entry: Struct<8>,
    trx: Struct<3>,
    origin: Struct<11>,
    head: Struct<9>,
    metadata: Py<PyType>,
    no_metadata: Py<PyAny>,
}

/// What all entries of one reading share.
pub struct Place<'a, 'py> {
    space: &'a Bound<'py, PyAny>,
    partition: &'a Bound<'py, PyAny>,
    partitions: &'a Bound<'py, PyAny>,
    incarnation: &'a Bound<'py, PyAny>,
}

fn int<'py>(py: Python<'py>, number: u64) -> Bound<'py, PyAny> {
    PyInt::new(py, number).into_any()
}

impl Records {
    fn origin<'py>(
        &self,
        py: Python<'py>,
        place: &Place<'_, 'py>,
        position: Bound<'py, PyAny>,
        index: u64,
        first: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let no = PyBool::new(py, false).to_owned().into_any();
        self.origin.make(
            py,
            [
                place.partition.clone(),
                place.partitions.clone(),
                position,
                int(py, index),
                first,
                intern!(py, "hot").clone().into_any(),
                int(py, 0),
                py.None().into_bound(py),
                place.incarnation.clone(),
                no.clone(),
                no,
            ],
        )
    }

    /// The entry of a frame that has a payload and nothing else.
    #[allow(clippy::too_many_arguments)]
    pub fn lone_entry<'py>(
        &self,
        py: Python<'py>,
        place: &Place<'_, 'py>,
        same: &mut Same<'py>,
        head: &Head<'_>,
        segment: Bound<'py, PyAny>,
        number: Bound<'py, PyAny>,
        payload: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let (sequence, timestamp) = (same.sequence.get(py, head.first), same.timestamp.get(py, head.timestamp));
        let position = same.position(py, head.position);
        let origin = self.origin(py, place, position, head.index, sequence.clone())?;
        let node = same.node(py, head.node);
        let trx = self.trx.make(py, [PyBytes::new(py, head.id).into_any(), node, number])?;
        let (payload, metadata) = (PyBytes::new(py, payload).into_any(), self.no_metadata.bind(py).clone());
        self.entry.make(py, [place.space.clone(), segment, sequence, timestamp, trx, payload, metadata, origin])
    }

    /// (end of the frame, (head, origin, entries from sequence `start`)). None if Python has to decide.
    pub fn decoded<'py>(
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
            let Some(content) = zstd::content_of(frame.body, frame.raw, Vec::with_capacity) else { return Ok(None) };
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
        let first = int(py, head.first);
        let origin = self.origin(py, place, int(py, head.position), head.index, first.clone())?;
        let id = PyBytes::new(py, head.id).into_any();
        let trx = self.trx.make(py, [id.clone(), node.clone(), number.clone()])?;
        let skipped = usize::try_from(start.saturating_sub(head.first)).unwrap_or(usize::MAX);
        let mut entries = Vec::with_capacity(body.payloads.len().saturating_sub(skipped));
        let mut told = body.metadata;
        for (at, payload) in body.payloads.iter().enumerate() {
            let metadata = match &mut told {
                None => self.no_metadata.bind(py).clone(),
                Some(input) => match self.metadata(py, input)? {
                    None => return Ok(None),
                    Some(metadata) => metadata,
                },
            };
            if at >= skipped {
                let sequence = int(py, head.first + at as u64);
                let (segment, timestamp, payload) = (segment.clone(), timestamp.clone(), PyBytes::new(py, payload));
                let (space, trx, origin) = (place.space.clone(), trx.clone(), origin.clone());
                let values = [space, segment, sequence, timestamp, trx, payload.into_any(), metadata, origin];
                entries.push(self.entry.make(py, values)?);
            }
        }
        if told.is_some_and(|input| !input.is_empty()) {
            return Ok(None);
        }
        let (position, index, count) = (int(py, head.position), int(py, head.index), int(py, head.count));
        let head = self.head.make(py, [number, timestamp, id, node, position, index, segment, first, count])?;
        let found = PyTuple::new(py, [head, origin, PyList::new(py, entries)?.into_any()])?;
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
        py: Python<'_>,
        entry: Py<PyType>,
        trx: Py<PyType>,
        origin: Py<PyType>,
        head: Py<PyType>,
        metadata: Py<PyType>,
        no_metadata: Py<PyAny>,
    ) -> PyResult<Self> {
        let (entry, trx) = (Struct::new(py, entry)?, Struct::new(py, trx)?);
        let (origin, head) = (Struct::new(py, origin)?, Struct::new(py, head)?);
        Ok(Records { entry, trx, origin, head, metadata, no_metadata })
    }

    /// True if entries are made without calls of their classes.
    #[getter]
    fn is_direct(&self) -> bool {
        self.entry.is_direct() && self.trx.is_direct() && self.origin.is_direct() && self.head.is_direct()
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
        #[pyo3(from_py_with = some)] at: Option<usize>,
        seed: u32,
        start: u64,
        incarnation: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(at) = at else { return Ok(None) };
        let place = Place { space, partition, partitions, incarnation };
        with_bytes(view, |view| self.decoded(py, &place, view, at, seed, start).transpose()).transpose()
    }
}

/// Makes entries of an iterator's small transactions, or of its frames of one segment.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Reader {
    pub records: Py<Records>,
    space: Py<PyAny>,
    partition: Py<PyAny>,
    partitions: Py<PyAny>,
    pub seed: u32,
    incarnation: Py<PyAny>,
    /// The segment of all frames; None: whole records are read.
    pub segment: Option<Py<PyString>>,
}

/// Values that consecutive transactions have in common, as Python objects.
#[derive(Default)]
pub struct Same<'py> {
    node: Option<Bound<'py, PyBytes>>,
    segment: Option<(Bound<'py, PyString>, String)>,
    sequence: SameInt<'py>,
    timestamp: SameInt<'py>,
    number: SameInt<'py>,
}

/// The integer that was needed last.
#[derive(Default)]
struct SameInt<'py> {
    kept: Option<(u64, Bound<'py, PyAny>)>,
}

impl<'py> SameInt<'py> {
    fn known(&self, number: u64) -> Option<Bound<'py, PyAny>> {
        self.kept.as_ref().filter(|kept| kept.0 == number).map(|kept| kept.1.clone())
    }

    fn get(&mut self, py: Python<'py>, number: u64) -> Bound<'py, PyAny> {
        self.known(number).unwrap_or_else(|| self.kept.insert((number, int(py, number))).1.clone())
    }
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

    /// Where each transaction has one entry, this is the number of the transaction before.
    fn position(&self, py: Python<'py>, position: u64) -> Bound<'py, PyAny> {
        self.number.known(position).unwrap_or_else(|| int(py, position))
    }
}

/// What a reader reads: whole records, or the frames of one segment.
struct Wanted<'a, 'py> {
    seed: u32,
    segment: Option<(&'a Bound<'py, PyString>, &'a str)>,
}

impl<'py> Wanted<'_, 'py> {
    /// The frame and the payload of a small record, or frame, with one entry. None for any other one.
    fn lone<'b>(&self, data: &'b [u8]) -> Option<(Frame<'b>, &'b [u8])> {
        if data.len() > SHORT {
            return None;
        }
        let at = if self.segment.is_some() { 0 } else { lone_frame(data, self.seed)? };
        let frame = Frame::decode(data, at, self.seed)?;
        let payload = frame.lone()?;
        let right = frame.after == data.len() && self.segment.is_none_or(|(_, text)| text == frame.head.segment);
        right.then_some((frame, payload))
    }

    fn segment(&self, py: Python<'py>, same: &mut Same<'py>, head: &Head<'_>) -> Bound<'py, PyAny> {
        match self.segment {
            Some((segment, _)) => segment.clone().into_any(),
            None => same.segment(py, head.segment),
        }
    }
}

impl Reader {
    pub fn place<'a, 'py>(&'a self, py: Python<'py>) -> Place<'a, 'py> {
        Place {
            space: self.space.bind(py),
            partition: self.partition.bind(py),
            partitions: self.partitions.bind(py),
            incarnation: self.incarnation.bind(py),
        }
    }

    /// `take` from the rows of a pack.
    fn take_rows<'py>(
        &self,
        py: Python<'py>,
        rows: &mut Rows,
        entries: &Bound<'py, PyList>,
        most: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (records, place, mut same) = (self.records.get(), self.place(py), Same::default());
        let wanted = Wanted { seed: self.seed, segment: None };
        let raw = rows.raw(py);
        while entries.len() < most {
            let Some((number, place_of)) = rows.next() else { return Ok(None) };
            let record = &raw.as_bytes()[place_of];
            let lone = wanted.lone(record).filter(|(frame, _)| frame.head.number == number);
            let Some((Frame { head, .. }, payload)) = lone else {
                let item = PyTuple::new(py, [int(py, number), PyBytes::new(py, record).into_any()])?;
                return Ok(Some(item.into_any()));
            };
            // In this order: `position` is the number of the transaction before.
            let segment = same.segment(py, head.segment);
            let number = int(py, number);
            let entry = records.lone_entry(py, &place, &mut same, &head, segment, number.clone(), payload)?;
            same.number.kept = Some((head.number, number));
            entries.append(entry)?;
        }
        Ok(None)
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
        if let (Ok(rows), None) = (items.cast::<Rows>(), &self.segment) {
            return self.take_rows(py, &mut *rows.try_borrow_mut()?, entries, most);
        }
        let items = items.cast::<PyIterator>()?;
        let (records, place, mut same) = (self.records.get(), self.place(py), Same::default());
        let text = self.segment.as_ref().map(|segment| segment.bind(py).to_cow()).transpose()?;
        let segment = self.segment.as_ref().zip(text.as_ref()).map(|(segment, text)| (segment.bind(py), &**text));
        let wanted = Wanted { seed: self.seed, segment };
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
            let (number, data, first) = match segment {
                None if tuple.len() == 2 => (tuple.get_item(0)?, tuple.get_item(1)?, None),
                Some(_) if tuple.len() == 3 => (tuple.get_item(0)?, tuple.get_item(2)?, Some(tuple.get_item(1)?)),
                _ => return Ok(Some(item)),
            };
            let Ok(bytes) = data.cast::<PyBytes>() else { return Ok(Some(item)) };
            let Some((Frame { head, .. }, payload)) = wanted.lone(bytes.as_bytes()) else { return Ok(Some(item)) };
            let right = number.extract::<u64>().is_ok_and(|number| number == head.number)
                && first.is_none_or(|first| first.extract::<u64>().is_ok_and(|first| first == head.first));
            if !right {
                return Ok(Some(item));
            }
            let segment = wanted.segment(py, &mut same, &head);
            entries.append(records.lone_entry(py, &place, &mut same, &head, segment, number, payload)?)?;
        }
        Ok(None)
    }
}
