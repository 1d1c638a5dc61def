//! The blocks and tails of runs that were used lately: see streamkit/index/block_cache.py.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::section::{AsItIs, SPREAD};
use crate::tail::Firsts;

/// A block of a file, or its tail: number -1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// `hash_of_partition`: two partitions have no file of the same id, unless somebody has copied one.
    pub partition: u64,
    pub id: [u8; 16],
    pub number: i64,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Ids are drawn by chance.
        let id = u128::from_ne_bytes(self.id) as u64;
        state.write_u64((id ^ self.number as u64 ^ self.partition).wrapping_mul(SPREAD));
    }
}

struct Slot {
    item: Py<PyAny>,
    /// Of a tail.
    firsts: Option<Py<Firsts>>,
    size: usize,
    used: bool,
}

#[derive(Default)]
struct Kept {
    slots: HashMap<Key, Slot, BuildHasherDefault<AsItIs>>,
    /// Every key of `slots`, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

/// The items that were used lately, up to a number of bytes. An item that was used since the last look stays.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Recent {
    /// The thread that has the lock has the GIL, and runs no Python meanwhile.
    kept: Mutex<Kept>,
    limit: usize,
}

impl Recent {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find<'py>(&self, py: Python<'py>, key: &Key) -> Option<Bound<'py, PyAny>> {
        let mut kept = self.kept();
        let slot = kept.slots.get_mut(key)?;
        slot.used = true;
        Some(slot.item.bind(py).clone())
    }

    /// The directory of a tail.
    pub fn firsts<'py>(&self, py: Python<'py>, key: &Key) -> Option<Bound<'py, Firsts>> {
        let mut kept = self.kept();
        let slot = kept.slots.get_mut(key)?;
        slot.used = true;
        Some(slot.firsts.as_ref()?.bind(py).clone())
    }

    pub fn keep(&self, key: Key, item: Py<PyAny>, firsts: Option<Py<Firsts>>, size: usize) {
        let mut gone = Vec::new();
        let mut kept = self.kept();
        if size > self.limit / 2 || kept.slots.contains_key(&key) {
            return;
        }
        kept.slots.insert(key, Slot { item, firsts, size, used: false });
        kept.order.push_back(key);
        kept.bytes += size;
        while kept.bytes > self.limit {
            let Some(oldest) = kept.order.pop_front() else { break };
            match kept.slots.get_mut(&oldest) {
                Some(slot) if slot.used => {
                    slot.used = false;
                    kept.order.push_back(oldest);
                }
                _ => {
                    if let Some(slot) = kept.slots.remove(&oldest) {
                        kept.bytes -= slot.size;
                        gone.push((slot.item, slot.firsts));
                    }
                }
            }
        }
        drop(kept);
        drop(gone);
    }
}

pub fn hash_of_partition(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish()
}

/// None for a file without an id of the usual length: nothing of it is kept.
fn key_of((partition, id, number): (&[u8], &[u8], i64)) -> Option<Key> {
    Some(Key { partition: hash_of_partition(partition), id: id.try_into().ok()?, number })
}

#[pymethods]
impl Recent {
    #[new]
    fn new(limit: usize) -> Self {
        Recent { kept: Mutex::default(), limit }
    }

    #[getter]
    fn size(&self) -> usize {
        self.kept().bytes
    }

    fn get<'py>(&self, py: Python<'py>, key: (&[u8], &[u8], i64)) -> Option<Bound<'py, PyAny>> {
        self.find(py, &key_of(key)?)
    }

    fn put_all(&self, some: Vec<Bound<'_, PyTuple>>) -> PyResult<()> {
        some.iter().try_for_each(|pair| self.put(pair.get_item(0)?.extract()?, pair.get_item(1)?))
    }

    fn put(&self, key: (&[u8], &[u8], i64), item: Bound<'_, PyAny>) -> PyResult<()> {
        let size = item.getattr("size")?.extract()?;
        if let Some(key) = key_of(key) {
            let firsts = if key.number < 0 { item.getattr("_twin").ok() } else { None };
            let firsts = firsts.and_then(|firsts| firsts.cast_into().ok()).map(Bound::unbind);
            self.keep(key, item.unbind(), firsts, size);
        }
        Ok(())
    }
}
