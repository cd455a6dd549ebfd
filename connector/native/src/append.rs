//! Bytes of an append: a producer's request and batch, and the batches that a follower fetched
//! (`raftlog/wire/produce_codec.py`, `raftlog/node/apis/produced_batch.py`,
//! `raftlog/log/writing/quorum_log.py`).

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::batch::{Header, Walk};
use crate::memory::Grow;
use crate::python::guarded;
use crate::reader::Reader;
use crate::scan::{RECORD_BYTES_MIN, Record};

/// Number of elements of an array with one element, in compact form.
const ONE: u8 = 2;
const ID_BYTES: usize = 16;

/// Produce request of one batch, without transactional id and tagged fields.
pub struct Request<'a> {
    pub acks: i16,
    pub timeout_ms: i32,
    pub topic_id: &'a [u8],
    /// Empty if the topic has an id.
    pub topic: &'a str,
    pub partition: i32,
    pub records: &'a [u8],
}

/// Read the body of a request of a flexible version; bytes after it are ignored.
pub fn request(body: &[u8], has_ids: bool, name_bytes_max: usize) -> Option<Request<'_>> {
    let mut fields = Reader::new(body);
    is_next(&mut fields, 0)?; // no transactional id
    let acks = i16::from_be_bytes(fields.array()?);
    let timeout_ms = i32::from_be_bytes(fields.array()?);
    is_next(&mut fields, ONE)?;
    let (topic_id, name) = if has_ids {
        (fields.take(ID_BYTES)?, Default::default())
    } else {
        (Default::default(), compact(&mut fields)?)
    };
    is_next(&mut fields, ONE)?;
    let partition = i32::from_be_bytes(fields.array()?);
    let records = compact(&mut fields)?;
    is_next(&mut fields, 0)?; // no tagged fields of partition, topic and request
    is_next(&mut fields, 0)?;
    is_next(&mut fields, 0)?;
    (name.len() <= name_bytes_max).then_some(())?;
    Some(Request {
        acks,
        timeout_ms,
        topic_id,
        topic: std::str::from_utf8(name).ok()?,
        partition,
        records,
    })
}

fn is_next(fields: &mut Reader<'_>, byte: u8) -> Option<()> {
    (fields.byte()? == byte).then_some(())
}

/// Read bytes that are not null and whose length is in compact form.
fn compact<'a>(fields: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = fields.unsigned_varint()?.checked_sub(1)?;
    fields.take(usize::try_from(length).ok()?)
}

/// Limits of a producer's batch (`raftlog/limits.py`).
pub struct Limits {
    pub bytes_max: usize,
    pub records_max: i32,
    pub record_headers_max: usize,
    pub headers_max: usize,
}

/// Header of a producer's batch that may be appended with its bytes, and the value of the first
/// header of its first record, if it was requested.
pub type Produced<'a> = (Header, Option<&'a [u8]>);

/// Check CRC, header and records of one batch that is not compressed.
///
/// `name`: the key that the first header of the first record must have; its value is returned.
pub fn produced<'a>(data: &'a [u8], limits: &Limits, name: Option<&[u8]>) -> Option<Produced<'a>> {
    let batch = Walk::new(data).next()?;
    let header = batch.header;
    let is_identified =
        header.producer_id < 0 || (header.producer_epoch >= 0 && header.base_sequence >= 0);
    let is_plain = batch.end() == data.len()
        && data.len() <= limits.bytes_max
        && header.attributes == 0
        && (1..=limits.records_max).contains(&header.record_count)
        && header.last_offset_delta == header.record_count - 1
        && header.base_timestamp_ms >= 0
        && is_identified
        && batch.has_valid_crc();
    if !is_plain {
        return None;
    }
    let payload = batch.payload();
    let count = usize::try_from(header.record_count).ok()?;
    if count.checked_mul(RECORD_BYTES_MIN)? > payload.len() {
        return None;
    }
    let mut records = Reader::new(payload);
    let (mut earliest_ms, mut latest_ms) = (i64::MAX, i64::MIN);
    let (mut header_count, mut first) = (0_usize, None);
    for expected_delta in 0..header.record_count {
        let record = Record::read(&mut records, limits.record_headers_max)?;
        if record.offset_delta != expected_delta {
            return None;
        }
        let timestamp_ms = header
            .base_timestamp_ms
            .wrapping_add(record.timestamp_delta);
        earliest_ms = earliest_ms.min(timestamp_ms);
        latest_ms = latest_ms.max(timestamp_ms);
        header_count = header_count.checked_add(record.header_count)?;
        let mut fields = record.headers;
        for _ in 0..record.header_count {
            let (key, value) = (fields.bytes()??, fields.bytes()?);
            if first.is_none() && expected_delta == 0 {
                first = Some((key, value));
            }
        }
        if record.header_count > 0 && !fields.is_at_end() {
            return None;
        }
    }
    if !records.is_at_end() || header_count > limits.headers_max {
        return None;
    }
    if earliest_ms < 0 || latest_ms != header.max_timestamp_ms {
        return None;
    }
    let named = match (name, first) {
        (None, _) => None,
        (Some(name), Some((key, Some(value)))) if key == name => Some(value),
        (Some(_), _) => return None,
    };
    Some((header, named))
}

/// Header of a first record that names a commit: its key, the number of headers to read, and the
/// maximum size of its value.
pub struct Name<'a> {
    pub key: &'a [u8],
    pub headers_max: usize,
    pub value_bytes_max: usize,
}

/// Size and header of a fetched batch, and the value of the header that names its commit.
pub type Followed<'a> = (usize, Header, Option<&'a [u8]>);

/// Read the batches that a follower appends at `end_offset`. All bytes must be valid batches that
/// are contiguous, neither compressed nor of control records, and in ascending epochs from `epoch`
/// to `leader_epoch`.
pub fn followed<'a>(
    data: &'a [u8],
    end_offset: i64,
    epoch: i32,
    leader_epoch: i32,
    name: Option<&Name<'_>>,
) -> Option<Vec<Followed<'a>>> {
    let mut found = Vec::new();
    let (mut expected_offset, mut epoch) = (end_offset, epoch);
    let mut batches = Walk::new(data);
    for batch in batches.by_ref() {
        let header = batch.header;
        let is_plain = header.base_offset == expected_offset
            && (epoch..=leader_epoch).contains(&header.leader_epoch)
            && header.codec() == 0
            && !header.is_control()
            && header.is_valid()
            && batch.has_valid_crc();
        if !is_plain {
            return None;
        }
        let value = match name {
            Some(name) if header.record_count > 0 => name.find(batch.payload())?,
            _ => None,
        };
        found.try_push((batch.bytes.len(), header, value))?;
        expected_offset = header.last_offset().checked_add(1)?;
        epoch = header.leader_epoch;
    }
    (batches.position() == data.len()).then_some(found)
}

impl Name<'_> {
    /// Return the value of the header in the first record, if it occurs once and is not too large.
    /// The outer `None` is for a damaged record.
    #[allow(clippy::option_option)]
    fn find<'a>(&self, payload: &'a [u8]) -> Option<Option<&'a [u8]>> {
        let record = Record::read(&mut Reader::new(payload), usize::MAX)?;
        let mut fields = record.headers;
        let (mut count, mut found) = (0, None);
        for _ in 0..record.header_count.min(self.headers_max) {
            let (key, value) = (fields.bytes()??, fields.bytes()?);
            if key == self.key {
                count += 1;
                found = value.filter(|value| value.len() <= self.value_bytes_max);
            }
        }
        Some(if count == 1 { found } else { None })
    }
}

// --- Functions that Python calls ---

/// Return a bytes object, or an error if there is no memory.
fn py_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes.len(), |out| {
        out.copy_from_slice(bytes);
        Ok(())
    })
}

/// Acks, timeout, topic id, topic name, partition, batch.
type RequestFields<'py> = (
    i16,
    i32,
    Bound<'py, PyBytes>,
    Bound<'py, PyString>,
    i32,
    Bound<'py, PyBytes>,
);

/// Read the body, which begins at `start`, of a Produce request with one batch.
#[pyfunction]
#[pyo3(signature = (data, start, has_ids, name_bytes_max, /))]
pub fn produce_request<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    start: usize,
    has_ids: bool,
    name_bytes_max: usize,
) -> PyResult<Option<RequestFields<'py>>> {
    let bytes = data.as_bytes();
    guarded(|| {
        let body = bytes.get(start..).unwrap_or_default();
        let Some(found) = request(body, has_ids, name_bytes_max) else {
            return Ok(None);
        };
        Ok(Some((
            found.acks,
            found.timeout_ms,
            py_bytes(py, found.topic_id)?,
            PyString::new(py, found.topic),
            found.partition,
            py_bytes(py, found.records)?,
        )))
    })
}

/// Base offset, leader epoch, greatest timestamp, producer id, epoch and sequence, number of
/// records, and the value of the header that names its commit.
type ProducedFields<'py> = (
    i64,
    i32,
    i64,
    i64,
    i16,
    i32,
    i32,
    Option<Bound<'py, PyBytes>>,
);

/// Check a producer's batch. `limits`: bytes, records, headers of a record and of the batch.
#[pyfunction]
#[pyo3(signature = (data, limits, name, /))]
pub fn produced_batch<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    limits: (usize, i32, usize, usize),
    name: Option<&[u8]>,
) -> PyResult<Option<ProducedFields<'py>>> {
    let bytes = data.as_bytes();
    let (bytes_max, records_max, record_headers_max, headers_max) = limits;
    let limits = Limits {
        bytes_max,
        records_max,
        record_headers_max,
        headers_max,
    };
    guarded(|| {
        let Some((header, value)) = produced(bytes, &limits, name) else {
            return Ok(None);
        };
        Ok(Some((
            header.base_offset,
            header.leader_epoch,
            header.max_timestamp_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
            value.map(|value| py_bytes(py, value)).transpose()?,
        )))
    })
}

/// Size, base offset, last offset, leader epoch, greatest timestamp, producer id, epoch and
/// sequence, number of records, whether it is transactional, the value that names its commit.
type FollowedFields<'py> = (
    usize,
    i64,
    i64,
    i32,
    i64,
    i64,
    i16,
    i32,
    i32,
    bool,
    Option<Bound<'py, PyBytes>>,
);

/// Read the batches that a follower appends at `end_offset`, after a record of `epoch`.
///
/// `name`: key of the header that names a commit, number of headers to read, and size of a value.
/// It is `None` if no batch names a commit.
#[pyfunction]
#[pyo3(signature = (data, end_offset, epoch, leader_epoch, name, /))]
pub fn followed_batches<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    end_offset: i64,
    epoch: i32,
    leader_epoch: i32,
    name: Option<(PyBackedBytes, usize, usize)>,
) -> PyResult<Option<Vec<FollowedFields<'py>>>> {
    let bytes = data.as_bytes();
    let name = name
        .as_ref()
        .map(|(key, headers_max, value_bytes_max)| Name {
            key,
            headers_max: *headers_max,
            value_bytes_max: *value_bytes_max,
        });
    guarded(|| {
        let found = followed(bytes, end_offset, epoch, leader_epoch, name.as_ref());
        let Some(found) = found else {
            return Ok(None);
        };
        let Some(mut fields) = Vec::with_room(found.len()) else {
            return Ok(None);
        };
        for (byte_count, header, value) in found {
            let value = value.map(|value| py_bytes(py, value)).transpose()?;
            let added = fields.try_push((
                byte_count,
                header.base_offset,
                header.last_offset(),
                header.leader_epoch,
                header.max_timestamp_ms,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                header.is_transactional(),
                value,
            ));
            if added.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(fields))
    })
}
