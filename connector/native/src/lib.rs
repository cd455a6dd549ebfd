//! The compiled core of raftlog (`raftlog._native`).
//!
//! It handles only input that is provably plain, and gives everything else back to Python. It has
//! no error texts, and does not decide what may be shown. Rules of this crate:
//!
//! 1. A function returns `None` for what it gives back. The Python function with the same purpose
//!    then handles all of it, or the batch or row that is named.
//! 2. No indexing that can fail, and no `unwrap`, because bytes are hostile (lints in
//!    `Cargo.toml`).
//! 3. A panic is caught at the boundary, and the call counts as given back.
//! 4. Memory is bounded by the input, or by limits that Python passes. If memory is exhausted, the
//!    call is given back (`memory.rs`), and Python raises the `MemoryError`.
//! 5. Only `block.rs` contains `unsafe`.

mod append;
mod batch;
mod block;
mod build;
mod clean;
mod columns;
mod gather;
mod memory;
mod merge;
mod new_records;
mod program;
mod python;
mod reader;
mod scan;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Number of this interface. `raftlog/compiled.py` has the number of the one that it uses.
const INTERFACE: u32 = 14;

/// `raftlog._native`; with `RAFTLOG_NATIVE=0` in the environment it cannot be imported.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if std::env::var_os("RAFTLOG_NATIVE").is_some_and(|value| value == "0") {
        return Err(PyImportError::new_err("disabled by RAFTLOG_NATIVE=0"));
    }
    module.add("INTERFACE", INTERFACE)?;
    module.add("SOURCES", env!("RAFTLOG_SOURCES"))?;
    module.add_class::<block::Block>()?;
    module.add_class::<python::Program>()?;
    module.add_class::<python::Values>()?;
    module.add_class::<python::OffsetMap>()?;
    module.add_class::<python::Retention>()?;
    module.add_function(wrap_pyfunction!(python::walk, module)?)?;
    module.add_function(wrap_pyfunction!(python::scan, module)?)?;
    module.add_function(wrap_pyfunction!(python::frames, module)?)?;
    module.add_function(wrap_pyfunction!(python::distinct_values, module)?)?;
    module.add_function(wrap_pyfunction!(python::encode_records, module)?)?;
    module.add_function(wrap_pyfunction!(python::fitting_record_count, module)?)?;
    module.add_function(wrap_pyfunction!(python::build_batch, module)?)?;
    module.add_function(wrap_pyfunction!(python::seal_batch, module)?)?;
    module.add_function(wrap_pyfunction!(append::produce_request, module)?)?;
    module.add_function(wrap_pyfunction!(append::produced_batch, module)?)?;
    module.add_function(wrap_pyfunction!(append::followed_batches, module)?)?;
    module.add_function(wrap_pyfunction!(python::panic, module)?)?;
    Ok(())
}
