//! The body of a frame, from the records that a caller passes in: see prepare in streamkit/log/validate.py and
//! encode_body in streamkit/log/record_format.py.

use std::ops::Deref;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::bytes::{Writer, bytes_of};
use crate::structs::Struct;

const NIL: u8 = 0xc0;
/// Bytes of a record's metadata. Python decides about more.
const MOST_METADATA: usize = u16::MAX as usize;
/// Metadata that is no part of a digest.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];
/// The flag of a body with metadata.
const METADATA: u8 = 2;

/// What stands before an array, bytes, a map or a text of some length: as short as possible.
struct Head([u8; 5], usize);

impl Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

/// `short` tells a length below `fixed` by itself. Behind the other kinds the length follows, in 1, 2 or 4 bytes; 0 is no
/// kind.
fn head(length: usize, fixed: usize, short: u8, [one, two, four]: [u8; 3]) -> Head {
    let [a, b, c, d] = (length as u32).to_be_bytes();
    match length {
        _ if length < fixed => Head([short | d, 0, 0, 0, 0], 1),
        0..=0xff if one != 0 => Head([one, d, 0, 0, 0], 2),
        0..=0xffff => Head([two, c, d, 0, 0], 3),
        _ => Head([four, a, b, c, d], 5),
    }
}

fn array(count: usize) -> Head {
    head(count, 16, 0x90, [0, 0xdc, 0xdd])
}

fn bin(length: usize) -> Head {
    head(length, 0, 0, [0xc4, 0xc5, 0xc6])
}

/// Adds the metadata of a record, its names in order. None where Python has to decide.
fn add_metadata(out: &mut Vec<u8>, metadata: &Bound<'_, PyAny>, digest: bool) -> Option<()> {
    let metadata = metadata.cast_exact::<PyDict>().ok()?;
    let mut size = 0;
    let mut texts = Vec::with_capacity(metadata.len());
    for (name, value) in metadata.iter() {
        let name = name.cast_into_exact::<PyString>().ok()?;
        let value = value.cast_into_exact::<PyString>().ok()?;
        if digest && TRACE.contains(&name.to_str().ok()?) {
            return None;
        }
        size += name.to_str().ok()?.len() + value.to_str().ok()?.len();
        texts.push((name, value));
    }
    if size > MOST_METADATA {
        return None;
    }
    if texts.is_empty() {
        out.push(NIL);
        return Some(());
    }
    let mut texts: Vec<(&str, &str)> =
        texts.iter().map(|(name, value)| Some((name.to_str().ok()?, value.to_str().ok()?))).collect::<Option<_>>()?;
    texts.sort_unstable();
    out.extend_from_slice(&head(texts.len(), 16, 0x80, [0, 0xde, 0xdf]));
    for text in texts.into_iter().flat_map(|(name, value)| [name, value]) {
        out.extend_from_slice(&head(text.len(), 32, 0xa0, [0xd9, 0xda, 0xdb]));
        out.extend_from_slice(text.as_bytes());
    }
    Some(())
}

/// The bytes of a body before it is compressed, its flags, the number of records, and the bytes of their payloads: `most`
/// at most. With `digest` the first are what is digested. None where Python has to decide, as for records that are wrong or
/// have sequences.
pub fn encode<'py>(
    record: &Struct<3>,
    records: &Bound<'py, PyList>,
    most: usize,
    digest: bool,
) -> Option<(Bound<'py, PyBytes>, u8, usize, usize)> {
    let given: Vec<_> = records.iter().collect();
    let count = given.len();
    if count == 0 || count > u32::MAX as usize {
        return None;
    }
    let list = array(count);
    let mut payloads = Vec::with_capacity(count);
    let mut metadata: Vec<u8> = Vec::new();
    let (mut size, mut raw) = (0usize, 1 + list.len());
    for (at, given) in given.iter().enumerate() {
        let [payload, told, sequence] = record.borrowed(given)?;
        let payload = bytes_of(payload.cast_exact().ok()?);
        size += payload.len();
        if !sequence.is_none() || size > most {
            return None;
        }
        raw += bin(payload.len()).len() + payload.len();
        if !told.is_none() {
            if metadata.is_empty() {
                metadata.extend_from_slice(&list);
                metadata.resize(list.len() + at, NIL);
            }
            add_metadata(&mut metadata, &told, digest)?;
        } else if !metadata.is_empty() {
            metadata.push(NIL);
        }
        payloads.push(payload);
    }
    let flags = if metadata.is_empty() { 0 } else { METADATA };
    let mut data = Writer::new(records.py(), raw + metadata.len())?;
    data.add(if metadata.is_empty() { &[0x91] } else { &[0x92] });
    data.add(&list);
    for payload in payloads {
        data.add(&bin(payload.len()));
        data.add(payload);
    }
    data.add(&metadata);
    Some((data.finish(), flags, count, size))
}
