//! The compiled twin of streamkit's format functions.
//!
//! The Python functions are the reference. A function here either returns what they would return, or says that it does
//! not handle the input; then the Python function decides, also about errors. Nothing here raises CorruptData.

mod append;
mod block;
mod body;
mod bytes;
mod cache;
mod call;
mod encode;
mod file;
mod log_rows;
mod msgpack;
mod pieces;
mod records;
mod rows;
mod runs;
mod section;
mod segment;
mod structs;
mod tail;
mod zstd;

use pyo3::prelude::*;

/// The version of the calls between streamkit and this module: streamkit uses a module with its own number only.
const INTERFACE: u32 = 9;

#[pymodule]
fn streamkit_speed(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<records::Records>()?;
    module.add_class::<records::Reader>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<append::Appender>()?;
    module.add_class::<block::Block>()?;
    module.add_class::<cache::Recent>()?;
    module.add_class::<file::Counts>()?;
    module.add_class::<file::OpenRow>()?;
    module.add_class::<runs::Directory>()?;
    module.add_class::<encode::LoneEncoder>()?;
    module.add_class::<encode::Parts>()?;
    module.add_function(wrap_pyfunction!(block::decode_block, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_frames, module)?)?;
    module.add_function(wrap_pyfunction!(encode::pack_row, module)?)?;
    module.add_function(wrap_pyfunction!(file::is_at, module)?)?;
    module.add_function(wrap_pyfunction!(file::read_part, module)?)?;
    module.add_function(wrap_pyfunction!(log_rows::add_rows, module)?)?;
    module.add_function(wrap_pyfunction!(log_rows::next_rows, module)?)?;
    module.add_function(wrap_pyfunction!(pieces::data_rows, module)?)?;
    module.add_function(wrap_pyfunction!(rows::pack_rows, module)?)?;
    module.add_function(wrap_pyfunction!(section::moved_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(section::section_rows, module)?)?;
    module.add_function(wrap_pyfunction!(section::filter_words, module)?)?;
    module.add_function(wrap_pyfunction!(section::passing, module)?)?;
    module.add_function(wrap_pyfunction!(segment::last_entry, module)?)?;
    module.add_function(wrap_pyfunction!(segment::segment_entries, module)?)?;
    module.add_function(wrap_pyfunction!(segment::row_entries, module)?)?;
    module.add_function(wrap_pyfunction!(tail::firsts, module)?)?;
    module.add_function(wrap_pyfunction!(tail::running_sums, module)?)?;
    module.add_function(wrap_pyfunction!(zstd::decompress, module)?)?;
    Ok(())
}
