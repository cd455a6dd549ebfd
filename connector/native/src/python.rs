//! Functions that Python calls: they take arguments, return blocks and catch panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::batch::{self, Checks, Header, Range, Walked};
use crate::block::Block;
use crate::build::{Fields, Writer};
use crate::clean::{self, Dropped, Place, Put};
use crate::columns;
use crate::gather;
use crate::memory::{Grow, Temporary, keep, reused, scratch};
use crate::merge;
use crate::new_records::{self, Encoded};
use crate::program::{self, Places, Rows, Style, Tables};
use crate::scan::{Columns, Records, Request, Scanned, StringBuffers};

/// Run `work`. If it panics, it counts as given back.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<Option<T>>) -> PyResult<Option<T>> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Ok(None))
}

/// Header columns: those of 64, 32 and 16 bits, each concatenated (`_NATIVE_FIELDS`).
type HeaderBlocks = (Block, Block, Block);
/// Stop, end position, number of batches, and their headers.
type WalkedBlocks = (u8, usize, usize, HeaderBlocks);
/// Headers, numbers, keys and values, headers of the records of a scan.
type ScannedBlocks = (
    WalkedBlocks,
    NumberBlocks,
    (StringBlocks, StringBlocks),
    RecordHeaderBlocks,
);
/// Validity bitmap, offsets and bytes of a column; `None` if all its rows are null.
type StringBlocks = Option<(Option<Block>, Block, Block)>;
/// Number of records; batch ordinal, control flag, offset, timestamp, leader epoch of each.
type NumberBlocks = (usize, Block, Block, Block, Block, Block);
/// Offsets of the headers of each record, their keys and values.
type RecordHeaderBlocks = (Block, StringBlocks, StringBlocks);

/// Return the columns of the headers; `None` if there is no memory.
fn walked_blocks(walked: Walked, file_position: i64) -> Option<WalkedBlocks> {
    let Walked {
        headers,
        end_position,
        stop,
    } = walked;
    let count = headers.len();
    let mut wide: Vec<i64> = reused(6 * count)?;
    let mut middle: Vec<i32> = reused(4 * count)?;
    let mut narrow: Vec<i16> = reused(2 * count)?;
    let all = || headers.iter().map(|(_, header)| header);
    wide.extend(
        headers
            .iter()
            .map(|(position, _)| file_position.wrapping_add_unsigned(*position as u64)),
    );
    wide.extend(all().map(|header| header.base_offset));
    wide.extend(all().map(Header::last_offset));
    wide.extend(all().map(|header| header.base_timestamp_ms));
    wide.extend(all().map(|header| header.max_timestamp_ms));
    wide.extend(all().map(|header| header.producer_id));
    middle.extend(all().map(|header| header.length + 12));
    middle.extend(all().map(|header| header.leader_epoch));
    middle.extend(all().map(|header| header.base_sequence));
    middle.extend(all().map(|header| header.record_count));
    narrow.extend(all().map(|header| header.attributes));
    narrow.extend(all().map(|header| header.producer_epoch));
    keep(headers);
    Some((
        stop as u8,
        end_position,
        count,
        (wide.into(), middle.into(), narrow.into()),
    ))
}

fn string_blocks(column: Option<StringBuffers>) -> StringBlocks {
    column.map(|buffers| {
        (
            buffers.valid.map(Block::from),
            buffers.offsets.into(),
            buffers.data.into(),
        )
    })
}

/// Walk the headers of the batches of `data`. With `crcs`, each batch is checked as well.
#[pyfunction]
#[pyo3(signature = (data, start_offset, end_offset, file_position, crcs))]
pub fn walk(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    start_offset: Option<i64>,
    end_offset: Option<i64>,
    file_position: i64,
    crcs: bool,
) -> PyResult<Option<WalkedBlocks>> {
    let bytes = data.as_bytes();
    let range = Range {
        start: start_offset,
        end: end_offset,
    };
    let checks = if crcs { Checks::Crcs } else { Checks::Headers };
    guarded(|| {
        Ok(py.detach(|| {
            let walked = crate::batch::walk(bytes, range, checks)?;
            walked_blocks(walked, file_position)
        }))
    })
}

/// Scan the batches of `data` to columns of headers and records.
///
/// `prefixes`: if there are any, only the rows of control records, and of values that begin with a
/// prefix, are returned. `limits`: bytes and decompressed bytes of one scan, headers of a record
/// and of one scan.
/// `decompress(start, end, codec)` returns the records of a batch, or `None` if they are damaged.
#[pyfunction]
#[pyo3(signature = (data, columns, prefixes, start_offset, end_offset, file_position, limits,
    decompress))]
#[allow(clippy::too_many_arguments)]
pub fn scan(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    columns: u32,
    prefixes: Vec<PyBackedBytes>,
    start_offset: Option<i64>,
    end_offset: Option<i64>,
    file_position: i64,
    limits: (usize, usize, usize, usize),
    decompress: Py<PyAny>,
) -> PyResult<Option<ScannedBlocks>> {
    let bytes = data.as_bytes();
    let (bytes_max, expanded_max, record_headers_max, headers_max) = limits;
    let request = Request {
        columns: Columns(columns),
        prefixes: &prefixes,
        range: Range {
            start: start_offset,
            end: end_offset,
        },
        bytes_max,
        expanded_max,
        record_headers_max,
        headers_max,
    };
    guarded(|| {
        py.detach(|| {
            let scanned = crate::scan::scan(bytes, request, expander(decompress))?;
            Ok(scanned.and_then(|Scanned { walked, records }| {
                let (numbers, strings, headers) = record_blocks(records);
                let walked = walked_blocks(walked, file_position)?;
                Some((walked, numbers, strings, headers))
            }))
        })
    })
}

fn record_blocks(
    records: Records,
) -> (
    NumberBlocks,
    (StringBlocks, StringBlocks),
    RecordHeaderBlocks,
) {
    let numbers = (
        records.rows,
        records.ordinals.into(),
        records.is_control.into(),
        records.offsets.into(),
        records.timestamps_ms.into(),
        records.leader_epochs.into(),
    );
    let strings = (string_blocks(records.keys), string_blocks(records.values));
    let headers = (
        records.header_offsets.into(),
        string_blocks(records.header_keys),
        string_blocks(records.header_values),
    );
    (numbers, strings, headers)
}

/// Program that decodes metadata records, compiled from their declarations.
#[pyclass(frozen, module = "raftlog._native")]
pub struct Program(program::Program);

/// Text of the plain records, its end after each row, the rows that are given back.
type WrittenBlocks = (Block, Block, Block);
/// Validity, ends and data of a column; `None` if all its rows are null.
type ColumnBlocks = Option<(Option<Block>, Option<Block>, Block)>;
/// Columns of a type and of their elements, each before its inner ones; if they are spread, the
/// bitmap of its rows, `None` for all; ordinals that are given back.
type TypedBlocks = (Vec<ColumnBlocks>, Option<Block>, Block);
/// Arrow's offsets and bytes of merged records; their first and last rows; the number of records,
/// in total and with the first field.
type MergedBlocks = (Block, Block, Block, Block, Block, Block);

/// Return a copy of a buffer; `None` if there is no memory.
fn copied(py: Python<'_>, buffer: &PyBuffer<u8>) -> PyResult<Option<Temporary>> {
    let Some(mut bytes) = scratch(buffer.item_count()) else {
        return Ok(None);
    };
    buffer.copy_to_slice(py, &mut bytes)?;
    Ok(Some(Temporary(bytes)))
}

/// Return the blocks of the columns of a type.
fn typed_blocks(built: columns::Columns) -> Option<TypedBlocks> {
    let mut blocks = Vec::with_room(built.fields.len())?;
    for column in built.fields {
        blocks.try_push(column.map(|buffers| {
            (
                buffers.valid.map(Block::from),
                buffers.ends.map(Block::from),
                buffers.data.into(),
            )
        }))?;
    }
    Some((
        blocks,
        built.valid.map(Block::from),
        built.given_back.into(),
    ))
}

#[pymethods]
impl Program {
    #[new]
    fn new(
        fields: Vec<i64>,
        structs: Vec<i64>,
        records: Vec<i64>,
        texts: Vec<Vec<u8>>,
        public: Vec<(i64, Vec<u8>)>,
    ) -> PyResult<Self> {
        program::Program::new(Tables {
            fields,
            structs,
            records,
            texts,
            public,
        })
        .map(Self)
        .ok_or_else(|| PyValueError::new_err("the tables of the program are inconsistent"))
    }

    /// Write lines of records. `places` are their offsets, leader epochs and timestamps; without
    /// them only the data of each record is written.
    #[pyo3(signature = (offsets, data, given, reveal, takes, noop, places))]
    #[allow(clippy::too_many_arguments)]
    fn json(
        &self,
        py: Python<'_>,
        offsets: PyBuffer<u8>,
        data: PyBuffer<u8>,
        given: PyBuffer<u8>,
        reveal: bool,
        takes: Option<&[u8]>,
        noop: bool,
        places: Option<(PyBuffer<u8>, PyBuffer<u8>, PyBuffer<u8>)>,
    ) -> PyResult<Option<WrittenBlocks>> {
        let (Some(offsets), Some(data), Some(given)) = (
            copied(py, &offsets)?,
            copied(py, &data)?,
            copied(py, &given)?,
        ) else {
            return Ok(None);
        };
        let places = match places {
            None => None,
            Some((one, two, three)) => {
                match (copied(py, &one)?, copied(py, &two)?, copied(py, &three)?) {
                    (Some(one), Some(two), Some(three)) => Some((one, two, three)),
                    _ => return Ok(None),
                }
            }
        };
        guarded(|| {
            Ok(py.detach(|| {
                let places = places
                    .as_ref()
                    .map(|(offsets, leader_epochs, timestamps_ms)| Places {
                        offsets: &offsets.0,
                        leader_epochs: &leader_epochs.0,
                        timestamps_ms: &timestamps_ms.0,
                    });
                let style = Style {
                    reveal,
                    takes,
                    noop,
                    places,
                };
                let rows = Rows::new(&offsets.0, &data.0)?;
                let written = program::write(&self.0, &rows, &given.0, &style)?;
                Some((
                    written.text.into(),
                    written.ends.into(),
                    written.given_back.into(),
                ))
            }))
        })
    }

    /// Build the columns of the records of several types, given by rows, API key and latest
    /// version. `None` for a type whose records are all given back. With `spread`, they have a row
    /// for each value.
    #[pyo3(signature = (offsets, data, kinds, reveal, spread))]
    fn columns(
        &self,
        py: Python<'_>,
        offsets: PyBuffer<u8>,
        data: PyBuffer<u8>,
        kinds: Vec<(PyBuffer<u8>, u8, u8)>,
        reveal: bool,
        spread: bool,
    ) -> PyResult<Option<Vec<Option<TypedBlocks>>>> {
        let (Some(offsets), Some(data)) = (copied(py, &offsets)?, copied(py, &data)?) else {
            return Ok(None);
        };
        let Some(mut found) = Vec::with_room(kinds.len()) else {
            return Ok(None);
        };
        for (which, api_key, version) in &kinds {
            let Some(which) = copied(py, which)? else {
                return Ok(None);
            };
            let built = guarded(|| {
                Ok(py.detach(|| {
                    let rows = Rows::new(&offsets.0, &data.0)?;
                    let kind = (*api_key, *version);
                    let built = columns::build(&self.0, &rows, &which.0, kind, reveal, spread)?;
                    typed_blocks(built)
                }))
            })?;
            if found.try_push(built).is_none() {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// Merge successive records of a key of `key_bytes` bytes in the rows `which`, all of one type.
    /// Only `fields` may be set; each has a place and the bounds of a number.
    #[pyo3(signature = (offsets, data, which, api_key, key_bytes, fields, /))]
    #[allow(clippy::too_many_arguments)]
    fn merged(
        &self,
        py: Python<'_>,
        offsets: PyBuffer<u8>,
        data: PyBuffer<u8>,
        which: PyBuffer<u8>,
        api_key: u8,
        key_bytes: usize,
        fields: Vec<(usize, i64, i64)>,
    ) -> PyResult<Option<MergedBlocks>> {
        let (Some(offsets), Some(data), Some(which)) = (
            copied(py, &offsets)?,
            copied(py, &data)?,
            copied(py, &which)?,
        ) else {
            return Ok(None);
        };
        guarded(|| {
            Ok(py.detach(|| {
                let rows = Rows::new(&offsets.0, &data.0)?;
                let request = merge::Request::new(api_key, key_bytes, &fields)?;
                let found = merge::merge(&self.0, &rows, &which.0, &request)?;
                Some((
                    found.ends.into(),
                    found.data.into(),
                    found.first_rows.into(),
                    found.last_rows.into(),
                    found.counts.into(),
                    found.set_counts.into(),
                ))
            }))
        })
    }
}

/// Read the API keys and versions of a column of metadata records; -1 for null and for Python.
#[pyfunction]
#[pyo3(signature = (offsets, data, /))]
pub fn frames(
    py: Python<'_>,
    offsets: PyBuffer<u8>,
    data: PyBuffer<u8>,
) -> PyResult<Option<(Block, Block)>> {
    let (Some(offsets), Some(data)) = (copied(py, &offsets)?, copied(py, &data)?) else {
        return Ok(None);
    };
    guarded(|| {
        Ok(py.detach(|| {
            let (api_keys, versions) = program::frames(&Rows::new(&offsets.0, &data.0)?)?;
            Some((api_keys.into(), versions.into()))
        }))
    })
}

/// Distinct values of a column, from which rows are gathered.
#[pyclass(frozen, module = "raftlog._native")]
pub struct Values(gather::Values);

/// Keep a copy of a column's distinct values: texts, or lists of elements of a fixed size.
#[pyfunction]
#[pyo3(signature = (ends, data, element_bytes, /))]
pub fn distinct_values(
    py: Python<'_>,
    ends: PyBuffer<u8>,
    data: PyBuffer<u8>,
    element_bytes: usize,
) -> PyResult<Option<Values>> {
    let (Some(ends), Some(data)) = (copied(py, &ends)?, copied(py, &data)?) else {
        return Ok(None);
    };
    Ok(Some(Values(gather::Values::new(ends, data, element_bytes))))
}

#[pymethods]
impl Values {
    /// Return bitmap, ends and data of a row for each code, a 32-bit number; -1 is null.
    #[pyo3(signature = (codes, /))]
    fn gather(&self, py: Python<'_>, codes: PyBuffer<u8>) -> PyResult<StringBlocks> {
        let Some(codes) = copied(py, &codes)? else {
            return Ok(None);
        };
        guarded(|| {
            Ok(py.detach(|| {
                let found = self.0.gather(&codes.0)?;
                Some((
                    found.valid.map(Block::from),
                    found.ends.into(),
                    found.data.into(),
                ))
            }))
        })
    }
}

/// Encode records, with offset deltas from `first_delta` on: bytes, largest timestamp, headers.
///
/// `types` are those of a record and of a header. `None` if a record or header has another type, or
/// if there are more than `byte_count_max` bytes or `header_count_max` headers.
#[pyfunction]
#[pyo3(signature = (records, types, first_delta, base_timestamp_ms, byte_count_max,
    header_count_max, /))]
pub fn encode_records<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    types: &Bound<'py, PyTuple>,
    first_delta: usize,
    base_timestamp_ms: &Bound<'py, PyAny>,
    byte_count_max: i64,
    header_count_max: i64,
) -> PyResult<Option<Encoded<'py>>> {
    let limits = (byte_count_max, header_count_max);
    let Some(request) = request_of(types, first_delta, base_timestamp_ms, limits) else {
        return Ok(None);
    };
    encode(py, records, &request, None)
}

/// Return how many of the records from `start` on are within the limits, in order.
///
/// `None` if a record has another type.
#[pyfunction]
#[pyo3(signature = (records, start, types, first_delta, base_timestamp_ms, byte_count_max,
    header_count_max, /))]
#[allow(clippy::too_many_arguments)]
pub fn fitting_record_count<'py>(
    records: &Bound<'py, PyAny>,
    start: usize,
    types: &Bound<'py, PyTuple>,
    first_delta: usize,
    base_timestamp_ms: &Bound<'py, PyAny>,
    byte_count_max: i64,
    header_count_max: i64,
) -> PyResult<Option<usize>> {
    let limits = (byte_count_max, header_count_max);
    let Some(request) = request_of(types, first_delta, base_timestamp_ms, limits) else {
        return Ok(None);
    };
    guarded(|| {
        Ok(if let Ok(list) = records.cast_exact::<PyList>() {
            new_records::fitting(list.iter().skip(start), &request)
        } else if let Ok(tuple) = records.cast_exact::<PyTuple>() {
            new_records::fitting(tuple.iter().skip(start), &request)
        } else {
            None
        })
    })
}

/// Return base and limits of a call; `None` for a number that the fields of a batch cannot have.
fn request_of<'a, 'py>(
    types: &'a Bound<'py, PyTuple>,
    first_delta: usize,
    base_timestamp_ms: &Bound<'py, PyAny>,
    (byte_count_max, header_count_max): (i64, i64),
) -> Option<new_records::Request<'a, 'py>> {
    Some(new_records::Request {
        types,
        first_delta,
        base_timestamp_ms: base_timestamp_ms.extract().ok()?,
        byte_count_max: usize::try_from(byte_count_max).ok()?,
        header_count_max: usize::try_from(header_count_max).ok()?,
    })
}

/// Build a batch of records; return its bytes and their largest timestamp.
///
/// `None` if there are no records, a record has another type, or a limit is exceeded.
#[pyfunction]
#[pyo3(signature = (records, types, byte_count_max, header_count_max, base_offset, leader_epoch,
    attributes, timestamp_ms, producer_id, producer_epoch, base_sequence, /))]
#[allow(clippy::too_many_arguments)]
pub fn build_batch<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    types: &Bound<'py, PyTuple>,
    byte_count_max: i64,
    header_count_max: i64,
    base_offset: i64,
    leader_epoch: i32,
    attributes: i16,
    timestamp_ms: &Bound<'py, PyAny>,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
) -> PyResult<Option<(Bound<'py, PyBytes>, i64)>> {
    let limits = (byte_count_max, header_count_max);
    let Some(request) = request_of(types, 0, timestamp_ms, limits) else {
        return Ok(None);
    };
    let fields = Fields {
        base_offset,
        leader_epoch,
        attributes,
        last_offset_delta: -1, // set like `record_count`, when the records have been counted
        base_timestamp_ms: request.base_timestamp_ms,
        max_timestamp_ms: request.base_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count: 0,
    };
    let built = encode(py, records, &request, Some(fields))?;
    Ok(built.map(|(data, max_timestamp_ms, _)| (data, max_timestamp_ms)))
}

fn encode<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    request: &new_records::Request<'_, 'py>,
    fields: Option<Fields>,
) -> PyResult<Option<Encoded<'py>>> {
    guarded(|| {
        if let Ok(list) = records.cast_exact::<PyList>() {
            new_records::encode(py, || list.iter(), request, fields)
        } else if let Ok(tuple) = records.cast_exact::<PyTuple>() {
            new_records::encode(py, || tuple.iter(), request, fields)
        } else {
            Ok(None)
        }
    })
}

/// Build a batch of encoded records by prepending the header, with length and CRC.
#[pyfunction]
#[pyo3(signature = (payload, base_offset, leader_epoch, attributes, last_offset_delta,
    base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence,
    record_count, /))]
#[allow(clippy::too_many_arguments)]
pub fn seal_batch<'py>(
    py: Python<'py>,
    payload: &Bound<'py, PyBytes>,
    base_offset: i64,
    leader_epoch: i32,
    attributes: i16,
    last_offset_delta: i32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    record_count: i32,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let fields = Fields {
        base_offset,
        leader_epoch,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    };
    let payload = payload.as_bytes();
    guarded(|| {
        let mut is_whole = true;
        let byte_count = batch::HEADER_BYTES.saturating_add(payload.len());
        let batch = PyBytes::new_with(py, byte_count, |out| {
            is_whole = Writer::new(out).batch(&fields, payload).is_some();
            Ok(())
        })?;
        Ok(is_whole.then_some(batch))
    })
}

/// Position, next offset, epoch and its end, headers of a record and of a batch: `clean::Place`.
type PlaceFields = (usize, i64, Option<i32>, Option<i64>, usize, usize);
/// Offsets, epoch and greatest timestamp of dropped batches.
type DroppedFields = (i64, i64, i32, i64);
/// Records read and retained, batches read and retained.
type CountFields = (u64, u64, u64, u64);
/// Bytes that replace batches, position, next offset, counts, and what was dropped last.
type FilteredFields = (Block, usize, i64, CountFields, Option<DroppedFields>);

fn place_of(fields: PlaceFields) -> Place {
    let (position, next_offset, leader_epoch, epoch_end_offset, record_headers_max, headers_max) =
        fields;
    Place {
        position,
        next_offset,
        leader_epoch,
        epoch_end_offset,
        record_headers_max,
        headers_max,
    }
}

/// Return a function that calls `decompress(start, end, codec)` for the records of a batch.
fn expander(
    decompress: Py<PyAny>,
) -> impl FnMut(usize, usize, i16) -> PyResult<Option<PyBackedBytes>> {
    move |start, end, codec| {
        Python::attach(|py| Ok(decompress.call1(py, (start, end, codec))?.extract(py)?))
    }
}

/// What a compaction retains in addition to the last record of each key.
#[pyclass(frozen, module = "raftlog._native")]
pub struct Retention(clean::Retention);

#[pymethods]
impl Retention {
    #[new]
    #[pyo3(signature = (now_ms, horizon_ms, given_back, /))]
    fn new(now_ms: i64, horizon_ms: i64, given_back: Vec<i64>) -> Self {
        Self(clean::Retention::new(now_ms, horizon_ms, given_back))
    }
}

/// Last offset of each key, for a compaction.
#[pyclass(module = "raftlog._native")]
pub struct OffsetMap(clean::OffsetMap);

#[pymethods]
impl OffsetMap {
    #[new]
    #[pyo3(signature = (start_offset, entry_bytes, byte_count_max, /))]
    fn new(start_offset: i64, entry_bytes: usize, byte_count_max: i64) -> Self {
        Self(clean::OffsetMap::new(
            start_offset,
            entry_bytes,
            byte_count_max,
        ))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    const fn end_offset(&self) -> i64 {
        self.0.end_offset
    }

    #[setter]
    const fn set_end_offset(&mut self, offset: i64) {
        self.0.end_offset = offset;
    }

    /// Return the offset of a key's last record.
    #[pyo3(signature = (key, /))]
    fn get(&self, key: &[u8]) -> Option<i64> {
        self.0.get(key)
    }

    /// Set a key's offset; false if the map is full, `None` if there is no memory.
    #[pyo3(signature = (key, offset, /))]
    fn put(&mut self, key: &[u8], offset: i64) -> Option<bool> {
        match self.0.put(key, offset) {
            Put::Added => Some(true),
            Put::Full => Some(false),
            Put::NoMemory => None,
        }
    }

    /// Map the keys of plain batches; return position, next offset, and whether the map is full.
    #[pyo3(signature = (data, place, decompress, /))]
    fn add(
        &mut self,
        py: Python<'_>,
        data: &Bound<'_, PyBytes>,
        place: PlaceFields,
        decompress: Py<PyAny>,
    ) -> PyResult<Option<(usize, i64, bool)>> {
        let bytes = data.as_bytes();
        guarded(|| {
            py.detach(|| {
                let found = clean::add(&mut self.0, bytes, place_of(place), expander(decompress))?;
                Ok(found.map(|found| (found.position, found.next_offset, found.is_full)))
            })
        })
    }

    /// Return what replaces plain batches: their bytes, position, next offset, counts, and the
    /// batches that were dropped last.
    #[pyo3(signature = (data, place, retention, dropped, decompress, compress, /))]
    #[allow(clippy::too_many_arguments)]
    fn filter(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyBytes>,
        place: PlaceFields,
        retention: &Bound<'_, Retention>,
        dropped: Option<DroppedFields>,
        decompress: Py<PyAny>,
        compress: Py<PyAny>,
    ) -> PyResult<Option<FilteredFields>> {
        let bytes = data.as_bytes();
        let rules = &retention.get().0;
        let dropped = dropped.map(
            |(base_offset, last_offset, leader_epoch, max_timestamp_ms)| Dropped {
                base_offset,
                last_offset,
                leader_epoch,
                max_timestamp_ms,
            },
        );
        let pack = |records: &[u8], codec: i16| -> PyResult<PyBackedBytes> {
            Python::attach(|py| {
                let records = PyBytes::new_with(py, records.len(), |out| {
                    out.copy_from_slice(records);
                    Ok(())
                })?;
                Ok(compress.call1(py, (records, codec))?.extract(py)?)
            })
        };
        guarded(|| {
            py.detach(|| {
                let expand = expander(decompress);
                let place = place_of(place);
                let found = clean::filter(&self.0, bytes, place, rules, dropped, expand, pack)?;
                Ok(found.map(|found| {
                    let counts = found.counts;
                    (
                        found.out.into(),
                        found.position,
                        found.next_offset,
                        (
                            counts.records_read,
                            counts.records_retained,
                            counts.batches_read,
                            counts.batches_retained,
                        ),
                        found.dropped.map(|one| {
                            (
                                one.base_offset,
                                one.last_offset,
                                one.leader_epoch,
                                one.max_timestamp_ms,
                            )
                        }),
                    )
                }))
            })
        })
    }
}

/// Panic inside the guard, for the test that a panic is caught.
#[pyfunction]
pub fn panic() -> PyResult<Option<()>> {
    #[allow(clippy::panic)]
    guarded(|| panic!("a panic that a test planted"))
}
