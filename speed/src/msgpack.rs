//! The part of msgpack that records have. None for everything else: msgspec then decides about it.

/// Bytes that are read from the front.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Input { rest }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// An integer of `N` bytes.
    fn number<const N: usize>(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        let mut number = [0; 8];
        number[8 - N..].copy_from_slice(bytes);
        Some(u64::from_be_bytes(number))
    }

    /// The number of items of an array, which follow.
    pub fn array(&mut self) -> Option<usize> {
        match self.byte()? {
            kind @ 0x90..=0x9f => Some((kind & 0x0f) as usize),
            0xdc => Some(self.number::<2>()? as usize),
            0xdd => Some(self.number::<4>()? as usize),
            _ => None,
        }
    }

    /// The number of pairs of a map, which follow; None within for nil.
    pub fn map_or_nil(&mut self) -> Option<Option<usize>> {
        match self.byte()? {
            0xc0 => Some(None),
            kind @ 0x80..=0x8f => Some(Some((kind & 0x0f) as usize)),
            0xde => Some(Some(self.number::<2>()? as usize)),
            0xdf => Some(Some(self.number::<4>()? as usize)),
            _ => None,
        }
    }

    /// An integer from 0 to 2**63 - 1.
    pub fn unsigned(&mut self) -> Option<u64> {
        let number = match self.byte()? {
            kind @ 0x00..=0x7f => u64::from(kind),
            0xcc => self.number::<1>()?,
            0xcd => self.number::<2>()?,
            0xce => self.number::<4>()?,
            0xcf => self.number::<8>()?,
            _ => return None,
        };
        (number <= i64::MAX as u64).then_some(number)
    }

    pub fn bin(&mut self) -> Option<&'a [u8]> {
        let length = match self.byte()? {
            0xc4 => self.number::<1>()?,
            0xc5 => self.number::<2>()?,
            0xc6 => self.number::<4>()?,
            _ => return None,
        };
        self.take(usize::try_from(length).ok()?)
    }

    /// None within for nil.
    pub fn bin_or_nil(&mut self) -> Option<Option<&'a [u8]>> {
        if self.rest.first() == Some(&0xc0) {
            self.byte()?;
            return Some(None);
        }
        self.bin().map(Some)
    }

    pub fn str(&mut self) -> Option<&'a str> {
        let length = match self.byte()? {
            kind @ 0xa0..=0xbf => u64::from(kind & 0x1f),
            0xd9 => self.number::<1>()?,
            0xda => self.number::<2>()?,
            0xdb => self.number::<4>()?,
            _ => return None,
        };
        std::str::from_utf8(self.take(usize::try_from(length).ok()?)?).ok()
    }
}
