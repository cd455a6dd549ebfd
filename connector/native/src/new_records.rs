//! Records to be encoded, as Python has them: values, or instances of `NewRecord`
//! (`raftlog/records/record.py`). Only exact types are read, so that no user code runs.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::batch;
use crate::build::{self, Fields, Header, Record, Writer};
use crate::memory::{Grow, Temporary, reused};

/// Limits and base of the records of one call.
pub struct Request<'a, 'py> {
    /// `NewRecord` and `Header`.
    pub types: &'a Bound<'py, PyTuple>,
    pub first_delta: usize,
    pub base_timestamp_ms: i64,
    /// Limit of everything that is encoded, including a batch header.
    pub byte_count_max: usize,
    pub header_count_max: usize,
}

/// Encoded records, their largest timestamp, and the number of their headers.
pub type Encoded<'py> = (Bound<'py, PyBytes>, i64, usize);

/// Encode records, after their batch header if `fields` are given.
///
/// `None` if a record has another type or the records exceed a limit.
pub fn encode<'py, I: Iterator<Item = Bound<'py, PyAny>>>(
    py: Python<'py>,
    records: impl Fn() -> I,
    request: &Request<'_, 'py>,
    mut fields: Option<Fields>,
) -> PyResult<Option<Encoded<'py>>> {
    let header_bytes = fields.as_ref().map_or(0, |_| batch::HEADER_BYTES);
    let mut byte_count = header_bytes;
    let mut count = 0_usize;
    let mut are_values = true;
    for record in records() {
        if are_values {
            if let Ok(value) = record.cast_exact::<PyBytes>() {
                let delta = request.first_delta.wrapping_add(count);
                let encoded = build::value_bytes(value.as_bytes().len(), delta);
                byte_count = byte_count.saturating_add(encoded);
            } else {
                are_values = false;
            }
        }
        count += 1;
    }
    if let Some(fields) = fields.as_mut() {
        match i32::try_from(count) {
            Ok(count) if count > 0 => {
                fields.record_count = count;
                fields.last_offset_delta = count - 1;
            }
            _ => return Ok(None),
        }
    }
    if byte_count > request.byte_count_max {
        return Ok(None);
    }
    if !are_values {
        let Some(found) = write_records(records(), request, header_bytes) else {
            return Ok(None);
        };
        return finish(py, found, header_bytes, fields);
    }
    let mut is_whole = false;
    let encoded = PyBytes::new_with(py, byte_count, |out| {
        let delta = request.first_delta;
        is_whole = write_values(out, header_bytes, records(), delta, fields.as_ref()).is_some();
        Ok(())
    })?;
    Ok(is_whole.then_some((encoded, request.base_timestamp_ms, 0)))
}

/// Write the values, then the header before them; `None` if they do not fill `out`.
fn write_values<'py>(
    out: &mut [u8],
    header_bytes: usize,
    records: impl Iterator<Item = Bound<'py, PyAny>>,
    first_delta: usize,
    fields: Option<&Fields>,
) -> Option<()> {
    let (header, payload) = out.split_at_mut_checked(header_bytes)?;
    let mut left = Writer::new(payload);
    for (record, delta) in records.zip(first_delta..) {
        left.value(record.cast_exact::<PyBytes>().ok()?.as_bytes(), delta)?;
    }
    if !left.is_full() {
        return None;
    }
    fields.map_or(Some(()), |fields| {
        Writer::new(header).header(fields, payload)
    })
}

/// `NewRecord` and `Header`.
struct Types<'py> {
    record: Bound<'py, PyAny>,
    header: Bound<'py, PyAny>,
}

impl<'py> Types<'py> {
    fn of(request: &Request<'_, 'py>) -> Option<Self> {
        Some(Self {
            record: request.types.get_item(0).ok()?,
            header: request.types.get_item(1).ok()?,
        })
    }
}

/// Room for the header of a batch, encoded records, their largest timestamp and header count.
struct Written {
    out: Temporary,
    max_timestamp_ms: i64,
    header_count: usize,
}

fn write_records<'py>(
    records: impl Iterator<Item = Bound<'py, PyAny>>,
    request: &Request<'_, 'py>,
    header_bytes: usize,
) -> Option<Written> {
    let types = Types::of(request)?;
    let mut out = Temporary(reused(header_bytes)?);
    out.0.try_resize(header_bytes, 0)?;
    let mut headers = Vec::new();
    let mut header_count = 0_usize;
    let mut latest_ms: Option<i64> = None;
    for (given, delta) in records.zip(request.first_delta..) {
        let new = fields_of(given, &types, &mut headers)?;
        let record = new.record(request, delta, &headers);
        let body_bytes = record.body_bytes();
        header_count = header_count.checked_add(headers.len())?;
        let start = out.0.len();
        let end = start.checked_add(build::whole_bytes(body_bytes))?;
        if end > request.byte_count_max || header_count > request.header_count_max {
            return None;
        }
        out.0.try_resize(end, 0)?;
        let mut left = Writer::new(out.0.get_mut(start..)?);
        left.record(&record, body_bytes)?;
        if !left.is_full() {
            return None;
        }
        latest_ms = latest_ms.max(Some(new.timestamp_ms.unwrap_or(request.base_timestamp_ms)));
    }
    Some(Written {
        out,
        max_timestamp_ms: latest_ms?,
        header_count,
    })
}

/// Return how many records, in order, are within the limits of `request`. `None` if one of these,
/// or the first one that is not, has another type.
pub fn fitting<'py>(
    records: impl Iterator<Item = Bound<'py, PyAny>>,
    request: &Request<'_, 'py>,
) -> Option<usize> {
    let types = Types::of(request)?;
    let mut headers = Vec::new();
    let (mut byte_count, mut header_count, mut count) = (0_usize, 0_usize, 0);
    for (given, delta) in records.zip(request.first_delta..) {
        let new = fields_of(given, &types, &mut headers)?;
        let body_bytes = new.record(request, delta, &headers).body_bytes();
        byte_count = byte_count.checked_add(build::whole_bytes(body_bytes))?;
        header_count = header_count.checked_add(headers.len())?;
        if byte_count > request.byte_count_max || header_count > request.header_count_max {
            break;
        }
        count += 1;
    }
    Some(count)
}

/// Write the header of the batch, if there is one, and return all bytes.
fn finish(
    py: Python<'_>,
    mut found: Written,
    header_bytes: usize,
    fields: Option<Fields>,
) -> PyResult<Option<Encoded<'_>>> {
    if let Some(mut fields) = fields {
        fields.max_timestamp_ms = found.max_timestamp_ms;
        let Some((header, payload)) = found.out.0.split_at_mut_checked(header_bytes) else {
            return Ok(None);
        };
        if Writer::new(header).header(&fields, payload).is_none() {
            return Ok(None);
        }
    }
    let encoded = PyBytes::new_with(py, found.out.0.len(), |bytes| {
        bytes.copy_from_slice(&found.out.0);
        Ok(())
    })?;
    Ok(Some((encoded, found.max_timestamp_ms, found.header_count)))
}

/// Key, value and timestamp of a record.
struct NewRecord<'py> {
    key: Option<Bound<'py, PyBytes>>,
    value: Option<Bound<'py, PyBytes>>,
    timestamp_ms: Option<i64>,
}

impl<'py> NewRecord<'py> {
    fn record<'a>(
        &'a self,
        request: &Request<'_, 'py>,
        offset_delta: usize,
        headers: &'a [NewHeader],
    ) -> Record<'a, NewHeader> {
        let base_ms = request.base_timestamp_ms;
        let timestamp_delta = self.timestamp_ms.map_or(0, |ms| ms.wrapping_sub(base_ms));
        Record {
            key: self.key.as_ref().map(|key| key.as_bytes()),
            value: self.value.as_ref().map(|value| value.as_bytes()),
            timestamp_delta,
            offset_delta,
            headers,
        }
    }
}

enum HeaderKey {
    Text(PyBackedStr),
    Raw(PyBackedBytes),
}

struct NewHeader {
    key: HeaderKey,
    value: Option<PyBackedBytes>,
}

impl Header for NewHeader {
    fn as_bytes(&self) -> (&[u8], Option<&[u8]>) {
        let key = match &self.key {
            HeaderKey::Text(text) => text.as_bytes(),
            HeaderKey::Raw(bytes) => bytes,
        };
        (key, self.value.as_deref())
    }
}

/// Return the fields of a record, and its headers in `headers`.
#[inline]
fn fields_of<'py>(
    record: Bound<'py, PyAny>,
    types: &Types<'py>,
    headers: &mut Vec<NewHeader>,
) -> Option<NewRecord<'py>> {
    headers.clear();
    let py = record.py();
    if !record.get_type().is(&types.record) {
        return Some(NewRecord {
            key: None,
            value: Some(record.cast_into_exact().ok()?),
            timestamp_ms: None,
        });
    }
    let timestamp = record.getattr(intern!(py, "timestamp_ms")).ok()?;
    let timestamp_ms = if timestamp.is_none() {
        None
    } else {
        Some(timestamp.cast_exact::<PyInt>().ok()?.extract().ok()?)
    };
    let given = record.getattr(intern!(py, "headers")).ok()?;
    for header in given.cast_exact::<PyTuple>().ok()? {
        headers.try_push(header_of(&header, types)?)?;
    }
    Some(NewRecord {
        key: bytes_or_null(record.getattr(intern!(py, "key")).ok()?)?,
        value: bytes_or_null(record.getattr(intern!(py, "value")).ok()?)?,
        timestamp_ms,
    })
}

fn header_of<'py>(header: &Bound<'py, PyAny>, types: &Types<'py>) -> Option<NewHeader> {
    let py = header.py();
    if !header.get_type().is(&types.header) {
        return None;
    }
    let raw_key = bytes_or_null(header.getattr(intern!(py, "raw_key")).ok()?)?;
    let key = if let Some(bytes) = raw_key {
        HeaderKey::Raw(bytes.into())
    } else {
        let text = header.getattr(intern!(py, "key")).ok()?;
        let text = text.cast_into_exact::<PyString>().ok()?;
        HeaderKey::Text(text.try_into().ok()?) // fails for surrogates, which UTF-8 lacks
    };
    let value = bytes_or_null(header.getattr(intern!(py, "value")).ok()?)?;
    Some(NewHeader {
        key,
        value: value.map(PyBackedBytes::from),
    })
}

#[allow(clippy::option_option)]
fn bytes_or_null(field: Bound<'_, PyAny>) -> Option<Option<Bound<'_, PyBytes>>> {
    if field.is_none() {
        return Some(None);
    }
    field.cast_into_exact().ok().map(Some)
}
