//! Metadata records, their fields and their JSON, by a program that Python compiles from their
//! declarations (`state/raftlog_state/records/native_program.py`).
//!
//! A record is plain if its type and version are in the program, its bytes are valid, it has no
//! unknown tagged fields, its text is printable ASCII or Latin, and each field that may be secret
//! is null or has its name in the list of public configs. Every other record is given back.

use std::collections::{HashMap, HashSet};

use crate::memory::{Grow, reused};
use crate::reader::Reader;

/// Longest string (`limits.STRING_BYTES_MAX`).
pub const STRING_BYTES_MAX: usize = 32_767;
/// Maximum number of fields of a struct that are located in one step.
pub const FIELDS_MAX: usize = 32;
const FRAME_VERSION: u8 = 1;
const NO_OP_VALUE: [u8; 4] = [1, 20, 0, 0];
const URL_DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Kind of a value. The numbers are those in the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int8,
    Int16,
    UInt16,
    Int32,
    Int64,
    Float64,
    Uuid,
    String,
}

impl Kind {
    const fn of(number: i64) -> Option<Self> {
        Some(match number {
            0 => Self::Bool,
            1 => Self::Int8,
            2 => Self::Int16,
            3 => Self::UInt16,
            4 => Self::Int32,
            5 => Self::Int64,
            6 => Self::Float64,
            7 => Self::Uuid,
            8 => Self::String,
            _ => return None,
        })
    }

    /// Return the number of bytes; `None` for a string.
    pub const fn width(self) -> Option<usize> {
        Some(match self {
            Self::Bool | Self::Int8 => 1,
            Self::Int16 | Self::UInt16 => 2,
            Self::Int32 => 4,
            Self::Int64 | Self::Float64 => 8,
            Self::Uuid => 16,
            Self::String => return None,
        })
    }
}

#[derive(Clone, Copy)]
pub enum Shape {
    Scalar(Kind),
    Array(Kind),
    /// Array of the struct at this index.
    Structs(usize),
}

/// Field in one version of a record or struct.
pub struct Field {
    /// `,"name":`
    label: Vec<u8>,
    pub shape: Shape,
    pub tag: Option<u32>,
    pub nullable: bool,
    pub hidden: bool,
    /// The number. For a string or array, -1 is null and 0 is empty.
    pub default: i64,
    /// Position among the fields of all versions.
    pub place: usize,
}

/// Fields of a record or struct that exist in one version, in the order of their declaration.
pub struct Struct {
    pub fields: Vec<Field>,
    /// Indexes of the fields without a tag.
    pub untagged: Vec<usize>,
    /// Indexes of the tagged fields, ascending by tag: the order of their bytes.
    pub by_tag: Vec<usize>,
    /// Whether a field may be secret.
    pub hides: bool,
}

/// One version of a record type.
pub struct Record {
    /// `{"type":"..","version":..,"data":`
    head: Vec<u8>,
    /// Index of its struct.
    pub body: usize,
    /// Fields with the resource type and the name of a config, which decide what is public.
    pub guard: Option<(usize, usize)>,
}

/// Compiled declarations.
pub struct Program {
    pub structs: Vec<Struct>,
    /// By api key and version.
    records: Vec<Option<Record>>,
    /// Names of the public configs of each resource type.
    public: HashMap<i64, HashSet<Vec<u8>>>,
}

const VERSIONS_MAX: usize = 16;
const API_KEYS_MAX: usize = 128;

/// Tables of a program, as Python compiles them.
pub struct Tables {
    /// Per field: label, kind, element, tag, nullable, hidden, default, place.
    pub fields: Vec<i64>,
    /// Per struct: its first field, and their number.
    pub structs: Vec<i64>,
    /// Per record: api key, version, head, struct, two fields of the guard or -1.
    pub records: Vec<i64>,
    pub texts: Vec<Vec<u8>>,
    /// Resource type and name of the configs whose values are shown.
    pub public: Vec<(i64, Vec<u8>)>,
}

/// Kinds from this number on are arrays of the kind with the number less this.
const ARRAY: i64 = 16;
const STRUCTS: i64 = 32;

#[allow(clippy::disallowed_methods)] // runs once per process, and is small
impl Program {
    /// Build a program; `None` if the tables are inconsistent.
    pub fn new(tables: Tables) -> Option<Self> {
        let Tables {
            fields,
            structs,
            records,
            texts,
            public,
        } = tables;
        let text = |at: i64| texts.get(usize::try_from(at).ok()?).cloned();
        let struct_count = structs.len() / 2;
        let (rows, []) = fields.as_chunks::<8>() else {
            return None;
        };
        let mut all = Vec::new();
        let (spans, []) = structs.as_chunks::<2>() else {
            return None;
        };
        for &[first, count] in spans {
            let first = usize::try_from(first).ok()?;
            let end = first.checked_add(usize::try_from(count).ok()?)?;
            let mut own = Vec::new();
            for &[label, kind, element, tag, nullable, hidden, default, place] in
                rows.get(first..end)?
            {
                let shape = match kind {
                    STRUCTS => Shape::Structs(
                        usize::try_from(element)
                            .ok()
                            .filter(|&at| at < struct_count)?,
                    ),
                    ARRAY.. => Shape::Array(Kind::of(kind - ARRAY)?),
                    _ => Shape::Scalar(Kind::of(kind)?),
                };
                let mut after_comma = vec![b','];
                after_comma.extend(text(label)?);
                own.push(Field {
                    label: after_comma,
                    shape,
                    tag: u32::try_from(tag).ok(),
                    nullable: nullable != 0,
                    hidden: hidden != 0,
                    default,
                    place: usize::try_from(place).ok()?,
                });
            }
            if own.len() > FIELDS_MAX {
                return None;
            }
            let tag_of = |at: usize| own.get(at).and_then(|field| field.tag);
            let (mut by_tag, untagged): (Vec<_>, _) =
                (0..own.len()).partition(|&at| tag_of(at).is_some());
            by_tag.sort_by_key(|&at| tag_of(at));
            all.push(Struct {
                hides: own.iter().any(|field| field.hidden),
                fields: own,
                untagged,
                by_tag,
            });
        }
        let mut by_frame: Vec<Option<Record>> = Vec::new();
        by_frame.resize_with(API_KEYS_MAX * VERSIONS_MAX, || None);
        let (rows, []) = records.as_chunks::<6>() else {
            return None;
        };
        for &[api_key, version, head, body, kind, name] in rows {
            let slot = slot(u8::try_from(api_key).ok()?, u8::try_from(version).ok()?)?;
            *by_frame.get_mut(slot)? = Some(Record {
                head: text(head)?,
                body: usize::try_from(body).ok().filter(|&at| at < struct_count)?,
                guard: usize::try_from(kind).ok().zip(usize::try_from(name).ok()),
            });
        }
        let mut names: HashMap<_, HashSet<_>> = HashMap::new();
        for (resource_type, name) in public {
            names.entry(resource_type).or_default().insert(name);
        }
        Some(Self {
            structs: all,
            records: by_frame,
            public: names,
        })
    }
}

/// Return the index of a record type and version.
fn slot(api_key: u8, version: u8) -> Option<usize> {
    let (api_key, version) = (usize::from(api_key), usize::from(version));
    (api_key < API_KEYS_MAX && version < VERSIONS_MAX).then_some(api_key * VERSIONS_MAX + version)
}

/// Which records are written, and how much of them.
pub struct Style<'a> {
    /// Show fields that may be secret.
    pub reveal: bool,
    /// Whether records are written, by api key; `None` for all.
    pub takes: Option<&'a [u8]>,
    /// Write NoOp records.
    pub noop: bool,
    /// Offset, leader epoch and timestamp of each record, to write whole lines. `None`: only data.
    pub places: Option<Places<'a>>,
}

/// Columns of the numbers at the beginning of a line, in native byte order.
pub struct Places<'a> {
    pub offsets: &'a [u8],
    pub leader_epochs: &'a [u8],
    pub timestamps_ms: &'a [u8],
}

impl Places<'_> {
    fn write(&self, row: usize, out: &mut Vec<u8>) -> Option<()> {
        out.try_extend(b"{\"offset\":")?;
        write_integer(i64::from_ne_bytes(number(self.offsets, row)?), out)?;
        out.try_extend(b",\"leaderEpoch\":")?;
        write_integer(
            i64::from(i32::from_ne_bytes(number(self.leader_epochs, row)?)),
            out,
        )?;
        out.try_extend(b",\"timestamp\":")?;
        write_integer(i64::from_ne_bytes(number(self.timestamps_ms, row)?), out)?;
        out.try_push(b',')
    }
}

fn number<const N: usize>(column: &[u8], row: usize) -> Option<[u8; N]> {
    column.get(row * N..)?.first_chunk::<N>().copied()
}

/// Column of values: Arrow's offsets in native byte order, and the bytes from the first offset on.
pub struct Rows<'a> {
    first: i32,
    bounds: &'a [[u8; 4]],
    data: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Return the column; `None` if it has no whole offsets.
    pub const fn new(offsets: &'a [u8], data: &'a [u8]) -> Option<Self> {
        match offsets.as_chunks::<4>() {
            (bounds @ [first, ..], []) => Some(Self {
                first: i32::from_ne_bytes(*first),
                bounds,
                data,
            }),
            _ => None,
        }
    }

    pub const fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    #[inline]
    fn position(&self, row: usize) -> Option<usize> {
        let bound = i32::from_ne_bytes(*self.bounds.get(row)?);
        usize::try_from(bound.checked_sub(self.first)?).ok()
    }

    /// Return the bytes of a row; `None` if the column is inconsistent.
    #[inline]
    pub fn value(&self, row: usize) -> Option<&'a [u8]> {
        self.data
            .get(self.position(row)?..self.position(row.checked_add(1)?)?)
    }
}

/// Text of all plain records, its end after each row, and the rows that Python must handle.
pub struct Written {
    pub text: Vec<u8>,
    pub ends: Vec<i32>,
    pub given_back: Vec<i32>,
}

/// Bytes of text to reserve for each byte of a value.
const TEXT_PER_BYTE: usize = 4;

/// Write the records of a column of values. A row that is marked in `given` is given back.
///
/// `None` if the column is inconsistent, its text exceeds 32-bit offsets, or there is no memory.
pub fn write(
    program: &Program,
    rows: &Rows<'_>,
    given: &[u8],
    style: &Style<'_>,
) -> Option<Written> {
    let mut written = Written {
        text: reused(rows.data.len().saturating_mul(TEXT_PER_BYTE))?,
        ends: reused(rows.len() + 1)?,
        given_back: Vec::new(),
    };
    written.ends.try_push(0)?;
    for row in 0..rows.len() {
        let value = rows.value(row)?;
        let before = written.text.len();
        let is_given = *given.get(row)? != 0;
        if is_given
            || program
                .write_value(value, row, style, &mut written.text)
                .is_none()
        {
            written.text.truncate(before);
            written.given_back.try_push(i32::try_from(row).ok()?)?;
        }
        written
            .ends
            .try_push(i32::try_from(written.text.len()).ok()?)?;
    }
    Some(written)
}

/// Read API key and version, each of which has one byte in all known records.
#[inline]
pub fn read_frame(reader: &mut Reader<'_>) -> Option<(u8, u8)> {
    let [frame, api_key, version] = reader.array()?;
    (frame == FRAME_VERSION && api_key < 0x80 && version < 0x80).then_some((api_key, version))
}

/// Read the API keys and versions of all values; -1 for a null and for a frame that is not plain.
///
/// `None` if the column is inconsistent or there is no memory.
pub fn frames(rows: &Rows<'_>) -> Option<(Vec<i32>, Vec<i32>)> {
    let mut api_keys = reused(rows.len())?;
    let mut versions = reused(rows.len())?;
    for row in 0..rows.len() {
        let found = read_frame(&mut Reader::new(rows.value(row)?));
        let (api_key, version) = found.map_or((-1, -1), |(api_key, version)| {
            (api_key.into(), version.into())
        });
        api_keys.try_push(api_key)?;
        versions.try_push(version)?;
    }
    Some((api_keys, versions))
}

impl Program {
    /// Return one version of a record type.
    #[inline]
    pub fn record(&self, api_key: u8, version: u8) -> Option<&Record> {
        self.records.get(slot(api_key, version)?)?.as_ref()
    }

    #[inline]
    fn write_value(
        &self,
        value: &[u8],
        row: usize,
        style: &Style<'_>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let is_line = style.places.is_some();
        if is_line && value == NO_OP_VALUE && !style.noop {
            return Some(());
        }
        let mut reader = Reader::new(value);
        let (api_key, version) = read_frame(&mut reader)?;
        if value != NO_OP_VALUE
            && let Some(takes) = style.takes
            && *takes.get(usize::from(api_key))? == 0
        {
            // Python does not decode it either: damage in a record of another type is not reported.
            return Some(());
        }
        let record = self.record(api_key, version)?;
        if let Some(places) = &style.places {
            places.write(row, out)?;
            out.try_extend(record.head.get(1..)?)?;
        }
        let body = self.structs.get(record.body)?;
        let shows = Shows {
            reveal: style.reveal,
            guard: record.guard,
        };
        self.write_struct(body, &mut reader, &shows, out)?;
        if !reader.is_at_end() {
            return None;
        }
        if is_line {
            out.try_extend(b"}\n")?;
        }
        Some(())
    }

    /// Write the struct at the reader, and advance the reader after it.
    fn write_struct(
        &self,
        body: &Struct,
        reader: &mut Reader<'_>,
        shows: &Shows,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let begin = out.len();
        let mut rest = Reader::new(reader.rest());
        if (shows.reveal || !body.hides) && self.write_in_order(body, &mut rest, shows, out)? {
            *reader = rest;
        } else {
            out.truncate(begin);
            self.write_located(body, reader, shows, out)?;
        }
        match out.get_mut(begin) {
            Some(comma) => *comma = b'{',
            None => out.try_push(b'{')?,
        }
        out.try_push(b'}')
    }

    /// Write the fields of a struct, each after a comma, as they are read.
    ///
    /// Return false at a field that is declared before another one whose bytes precede it.
    fn write_in_order(
        &self,
        body: &Struct,
        reader: &mut Reader<'_>,
        shows: &Shows,
        out: &mut Vec<u8>,
    ) -> Option<bool> {
        let mut last = 0;
        for &at in &body.untagged {
            let field = body.fields.get(at)?;
            out.try_extend(&field.label)?;
            self.write_field(field, reader, shows, out)?;
            last = at;
        }
        let mut tagged = body.by_tag.iter();
        for _ in 0..reader.unsigned_varint()? {
            let tag = reader.unsigned_varint()?;
            let length = usize::try_from(reader.unsigned_varint()?).ok()?;
            let bytes = reader.take(length)?;
            // Nothing is left for a tag that is unknown or does not ascend.
            let (at, field) = tagged.by_ref().find_map(|&at| {
                let field = body.fields.get(at)?;
                (field.tag == Some(tag)).then_some((at, field))
            })?;
            if at < last {
                return Some(false);
            }
            last = at;
            let before = out.len();
            out.try_extend(&field.label)?;
            let mut inner = Reader::new(bytes);
            self.write_field(field, &mut inner, shows, out)?;
            if !inner.is_at_end() {
                return None;
            }
            if is_default(field, bytes)? {
                out.truncate(before);
            }
        }
        Some(true)
    }

    /// Write the fields of a struct, each after a comma. All of them are located first, because
    /// what is shown of one depends on others.
    fn write_located(
        &self,
        body: &Struct,
        reader: &mut Reader<'_>,
        shows: &Shows,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut located = [None; FIELDS_MAX];
        self.locate(body, reader, &mut located)?;
        for (field, at) in body.fields.iter().zip(located.iter()) {
            let Some(bytes) = at else {
                continue; // a tagged field with its default
            };
            if field.tag.is_some() && is_default(field, bytes)? {
                continue;
            }
            if field.hidden && !shows.reveal && !self.is_public(body, &located, shows, bytes)? {
                return None;
            }
            out.try_extend(&field.label)?;
            self.write_field(field, &mut Reader::new(bytes), shows, out)?;
        }
        Some(())
    }

    /// Write the bytes of each field, in the order of declaration, to `located`, which must be all
    /// `None` and stays `None` for an absent tag.
    pub fn locate<'a>(
        &self,
        body: &Struct,
        reader: &mut Reader<'a>,
        located: &mut [Option<&'a [u8]>; FIELDS_MAX],
    ) -> Option<()> {
        for (field, slot) in body.fields.iter().zip(located.iter_mut()) {
            if field.tag.is_none() {
                *slot = Some(self.skip_field(field, reader)?);
            }
        }
        let count = reader.unsigned_varint()?;
        let mut previous = None;
        for _ in 0..count {
            let tag = reader.unsigned_varint()?;
            let length = usize::try_from(reader.unsigned_varint()?).ok()?;
            if previous.is_some_and(|previous| tag <= previous) {
                return None;
            }
            previous = Some(tag);
            let bytes = reader.take(length)?;
            let at = body
                .fields
                .iter()
                .position(|field| field.tag == Some(tag))?;
            let field = body.fields.get(at)?;
            let mut inner = Reader::new(bytes);
            self.skip_field(field, &mut inner)?;
            if !inner.is_at_end() {
                return None;
            }
            *located.get_mut(at)? = Some(bytes);
        }
        Some(())
    }

    /// Skip a field; return its bytes.
    fn skip_field<'a>(&self, field: &Field, reader: &mut Reader<'a>) -> Option<&'a [u8]> {
        let begin = reader.rest();
        match field.shape {
            Shape::Scalar(kind) => skip_scalar(kind, field.nullable, reader)?,
            Shape::Array(kind) => {
                let count = read_length(field.nullable, reader)?.unwrap_or(0);
                if let Some(width) = kind.width() {
                    reader.take(count.checked_mul(width)?)?;
                } else {
                    for _ in 0..count {
                        skip_scalar(kind, false, reader)?;
                    }
                }
            }
            Shape::Structs(element) => {
                let element = self.structs.get(element)?;
                for _ in 0..read_length(field.nullable, reader)?.unwrap_or(0) {
                    self.locate(element, reader, &mut [None; FIELDS_MAX])?;
                }
            }
        }
        begin.get(..begin.len().checked_sub(reader.left())?)
    }

    fn write_field(
        &self,
        field: &Field,
        reader: &mut Reader<'_>,
        shows: &Shows,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        if let Shape::Scalar(kind) = field.shape {
            return write_scalar(kind, field.nullable, reader, out);
        }
        let Some(count) = read_length(field.nullable, reader)? else {
            return out.try_extend(b"null");
        };
        out.try_push(b'[')?;
        for ordinal in 0..count {
            if ordinal > 0 {
                out.try_push(b',')?;
            }
            match field.shape {
                Shape::Structs(element) => {
                    self.write_struct(self.structs.get(element)?, reader, shows, out)?;
                }
                Shape::Scalar(kind) | Shape::Array(kind) => write_scalar(kind, false, reader, out)?,
            }
        }
        out.try_push(b']')
    }

    /// Return whether a value that may be secret is shown, because it is null or a public config.
    pub fn is_public(
        &self,
        body: &Struct,
        located: &[Option<&[u8]>; FIELDS_MAX],
        shows: &Shows,
        value: &[u8],
    ) -> Option<bool> {
        if value == [0] {
            return Some(true); // null
        }
        let (kind, name) = shows.guard?;
        if body.fields.get(kind)?.hidden || body.fields.get(name)?.hidden {
            return None;
        }
        let [kind] = (*located.get(kind)?)?.first_chunk::<1>().copied()?;
        let mut name = Reader::new((*located.get(name)?)?);
        let length = read_length(false, &mut name)??;
        let name = name.take(length)?;
        let names = self.public.get(&i64::from(kind.cast_signed()));
        Some(names.is_some_and(|names| names.contains(name)))
    }
}

/// What is shown of a record.
pub struct Shows {
    pub reveal: bool,
    pub guard: Option<(usize, usize)>,
}

/// Return whether a tagged field's bytes are its default, which is not written.
fn is_default(field: &Field, bytes: &[u8]) -> Option<bool> {
    let mut reader = Reader::new(bytes);
    Some(match field.shape {
        Shape::Scalar(kind) if kind != Kind::String => {
            read_integer(kind, &mut reader)? == field.default
        }
        _ => match read_length(field.nullable, &mut reader)? {
            None => field.default == -1,
            Some(count) => count == 0 && field.default == 0,
        },
    })
}

/// Read a length or count. The inner `None` is null, if that is allowed.
#[inline(always)]
pub fn read_length(nullable: bool, reader: &mut Reader<'_>) -> Option<Option<usize>> {
    match reader.unsigned_varint()?.checked_sub(1) {
        None => nullable.then_some(None),
        Some(count) => {
            let count = usize::try_from(count).ok()?;
            (count <= reader.left()).then_some(Some(count))
        }
    }
}

#[inline]
fn skip_scalar(kind: Kind, nullable: bool, reader: &mut Reader<'_>) -> Option<()> {
    if let Some(width) = kind.width() {
        reader.take(width)?;
    } else if let Some(length) = read_length(nullable, reader)? {
        if length > STRING_BYTES_MAX {
            return None;
        }
        reader.take(length)?;
    }
    Some(())
}

/// Read a whole number or a boolean.
pub fn read_integer(kind: Kind, reader: &mut Reader<'_>) -> Option<i64> {
    Some(match kind {
        Kind::Bool => i64::from(reader.byte()? != 0),
        Kind::Int8 => i64::from(reader.byte()?.cast_signed()),
        Kind::Int16 => i64::from(i16::from_be_bytes(reader.array()?)),
        Kind::UInt16 => i64::from(u16::from_be_bytes(reader.array()?)),
        Kind::Int32 => i64::from(i32::from_be_bytes(reader.array()?)),
        Kind::Int64 => i64::from_be_bytes(reader.array()?),
        Kind::Float64 | Kind::Uuid | Kind::String => return None,
    })
}

#[inline]
fn write_scalar(
    kind: Kind,
    nullable: bool,
    reader: &mut Reader<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    match kind {
        Kind::Bool => out.try_extend(if reader.byte()? == 0 {
            b"false"
        } else {
            b"true"
        }),
        Kind::Float64 => {
            let value = f64::from_be_bytes(reader.array()?);
            // Only numbers that Java and Rust write in the same way: integers without an exponent.
            if value.fract() != 0.0
                || value.abs() >= 1e7
                || (value == 0.0 && value.is_sign_negative())
            {
                return None;
            }
            #[allow(clippy::cast_possible_truncation)]
            write_integer(value as i64, out)?;
            out.try_extend(b".0")
        }
        Kind::Uuid => {
            out.try_push(b'"')?;
            out.try_extend(&uuid_text(reader.array()?))?;
            out.try_push(b'"')
        }
        Kind::String => match read_length(nullable, reader)? {
            None => out.try_extend(b"null"),
            Some(length) if length > STRING_BYTES_MAX => None,
            Some(length) => write_text(reader.take(length)?, out),
        },
        _ => write_integer(read_integer(kind, reader)?, out),
    }
}

#[inline]
fn write_integer(value: i64, out: &mut Vec<u8>) -> Option<()> {
    out.try_extend(itoa::Buffer::new().format(value).as_bytes())
}

/// Write a string in quotes; `None` if a character may not be printable.
fn write_text(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.try_push(b'"')?;
    // Without an early exit, so that the compiler compares several bytes at a time.
    if text.iter().fold(true, |is_plain, byte| {
        is_plain & matches!(byte, b' '..=b'~') & !matches!(byte, b'"' | b'\\')
    }) {
        out.try_extend(text)?;
    } else if std::str::from_utf8(text).ok()?.chars().all(is_printable) {
        for &byte in text {
            if matches!(byte, b'"' | b'\\') {
                out.try_push(b'\\')?;
            }
            out.try_push(byte)?;
        }
    } else {
        return None;
    }
    out.try_push(b'"')
}

/// Return whether a character is printable and is ASCII or a letter of Latin script.
const fn is_printable(character: char) -> bool {
    matches!(character, ' '..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{2af}')
}

/// Number of characters of a uuid's text.
pub const UUID_CHARACTERS: usize = 22;

/// Characters for each number of twelve bits.
#[allow(clippy::indexing_slicing)] // by the compiler
const PAIRS: [[u8; 2]; 1 << 12] = {
    let mut pairs = [[0; 2]; 1 << 12];
    let mut bits = 0;
    while bits < pairs.len() {
        pairs[bits] = [URL_DIGITS[bits >> 6], URL_DIGITS[bits & 63]];
        bits += 1;
    }
    pairs
};

/// Return the text of a uuid in Kafka's form, base64 for URLs.
#[inline]
pub fn uuid_text(uuid: [u8; 16]) -> [u8; UUID_CHARACTERS] {
    let mut text = [0; UUID_CHARACTERS];
    let (fours, ends) = text.as_chunks_mut::<4>();
    let (threes, tail) = uuid.as_chunks::<3>();
    for (four, &[one, two, three]) in fours.iter_mut().zip(threes) {
        let bits = u32::from_be_bytes([0, one, two, three]);
        let ([first, second], [third, fourth]) = (url_pair(bits >> 12), url_pair(bits));
        *four = [first, second, third, fourth];
    }
    if let ([first, second], &[last]) = (ends, tail) {
        [*first, *second] = url_pair(u32::from(last) << 4); // the second has the last two bits
    }
    text
}

/// Return the characters for the last twelve bits.
#[inline]
fn url_pair(bits: u32) -> [u8; 2] {
    let at = usize::try_from(bits & 0xfff).unwrap_or_default();
    PAIRS.get(at).copied().unwrap_or_default()
}
