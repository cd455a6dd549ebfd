//! Fields of the metadata records of one type as columns, in Arrow's layout
//! (`state/raftlog_state/records/typed_columns.py`).
//!
//! A column tree has the fields of the latest version. A record of an older version gets the
//! defaults of the fields that it lacks, like those of an absent tagged field. A record is plain as
//! defined in `program`, except that its strings may have all characters.

use crate::memory::{Grow, reused};
use crate::program::{
    FIELDS_MAX, Field, Kind, Program, Rows, STRING_BYTES_MAX, Shape, Shows, Struct,
    UUID_CHARACTERS, read_frame, read_length, uuid_text,
};
use crate::reader::Reader;

/// Rows per byte of a bitmap.
const BITS: usize = 8;
/// Bytes by which a bitmap grows in one step.
const BITMAP_STEP: usize = 64;

/// Value of a row whose field is absent from its record.
#[derive(Clone, Copy)]
enum Absent {
    Null,
    /// String or array without elements.
    Empty,
    /// Number in native byte order, starting at the first byte.
    Number([u8; 8]),
}

/// Column of a field, or of the elements of an array.
///
/// Its vectors end at the last row with a value. Rows without one get the value of an absent field
/// only before the next row with a value is added, or at the end. So a field that a record lacks
/// costs nothing, and neither does a record of another type.
/// record of another type, cost nothing.
pub struct Column {
    /// Arrow's bitmap of a nullable column, up to the last row that is not null.
    valid: Vec<u8>,
    /// For strings and arrays: the end of each row in `data` or in the inner columns, after a 0.
    ends: Vec<i32>,
    /// Numbers in native byte order, booleans as bytes, or the bytes of all strings.
    data: Vec<u8>,
    shape: Shape,
    /// Only strings and arrays are nullable.
    nullable: bool,
    absent: Absent,
    /// Rows for which the vectors of strings and arrays reserve memory once they need it.
    room: usize,
    /// For arrays: the elements, or the fields of their structs.
    inner: Vec<Column>,
}

/// Arrow's buffers of a column.
pub struct Buffers {
    /// `None` if no row is null.
    pub valid: Option<Vec<u8>>,
    /// For strings and arrays only.
    pub ends: Option<Vec<i32>>,
    /// Numbers, Arrow's bitmap of booleans, or the bytes of all strings; empty for arrays.
    pub data: Vec<u8>,
}

/// Columns of the plain records, and the ordinals of the others.
pub struct Columns {
    /// Buffers of each column, before those of its inner columns. A column whose rows are all null
    /// is `None`, without inner columns.
    pub fields: Vec<Option<Buffers>>,
    /// If the columns are spread: Arrow's bitmap of the rows of the type, `None` if all are.
    pub valid: Option<Vec<u8>>,
    pub given_back: Vec<i32>,
}

/// Build the columns of the records in the rows `which`, numbers in native byte order, ascending.
/// All records are of the type `api_key`, whose latest version is `version`.
///
/// The columns have a row for each plain record. If they are `spread`, they have a row for each row
/// of `rows`, with any value for all other records.
///
/// `None` if the program lacks that version, the rows are inconsistent, a column exceeds 32-bit
/// offsets, or there is no memory.
pub fn build(
    program: &Program,
    rows: &Rows<'_>,
    which: &[u8],
    (api_key, version): (u8, u8),
    reveal: bool,
    spread: bool,
) -> Option<Columns> {
    let (which, []) = which.as_chunks::<4>() else {
        return None;
    };
    let latest = program
        .structs
        .get(program.record(api_key, version)?.body)?;
    let mut columns = columns_of(program, latest)?;
    let count = if spread { rows.len() } else { which.len() };
    for column in &mut columns {
        column.try_room(count)?;
    }
    let mut given_back = Vec::new();
    let mut valid = Vec::new();
    let mut done = 0;
    for (ordinal, row) in which.iter().enumerate() {
        let row = usize::try_from(i32::from_ne_bytes(*row)).ok()?;
        let value = rows.value(row)?;
        if spread {
            set_bit(&mut valid, row, count)?;
            done = row;
        }
        let place = (done, columns.as_mut_slice());
        if add_value(program, value, api_key, reveal, latest, place).is_some() {
            done += 1;
        } else {
            columns
                .iter_mut()
                .try_for_each(|column| column.truncate(done))?;
            given_back.try_push(i32::try_from(ordinal).ok()?)?;
        }
    }
    let mut fields = Vec::new();
    finish(columns, if spread { count } else { done }, &mut fields)?;
    Some(Columns {
        fields,
        valid: if spread { bitmap(valid, count)? } else { None },
        given_back,
    })
}

/// Set a row's bit in Arrow's bitmap, for which memory for `room` rows is reserved.
#[inline(always)]
fn set_bit(bitmap: &mut Vec<u8>, row: usize, room: usize) -> Option<()> {
    let at = row / BITS;
    if at >= bitmap.len() {
        lengthen(bitmap, at, room)?;
    }
    *bitmap.get_mut(at)? |= 1 << (row % BITS);
    Some(())
}

/// Add bytes to a bitmap, of which those up to the one at `at` are needed now.
#[inline(never)]
fn lengthen(bitmap: &mut Vec<u8>, at: usize, room: usize) -> Option<()> {
    let byte_count = at.checked_add(BITMAP_STEP)?;
    if bitmap.capacity() == 0 {
        *bitmap = reused(
            room.div_ceil(BITS)
                .checked_add(BITMAP_STEP)?
                .max(byte_count),
        )?;
    }
    bitmap.try_resize(byte_count, 0)
}

/// Return Arrow's bitmap of `count` rows; the inner `None` if all bits are set.
#[allow(clippy::option_option)]
fn bitmap(mut bits: Vec<u8>, count: usize) -> Option<Option<Vec<u8>>> {
    bits.try_resize(count.div_ceil(BITS), 0)?;
    let set: usize = bits.iter().map(|bits| bits.count_ones() as usize).sum();
    Some((set != count).then_some(bits))
}

/// Append the buffers of columns of `count` rows.
fn finish(columns: Vec<Column>, count: usize, found: &mut Vec<Option<Buffers>>) -> Option<()> {
    columns
        .into_iter()
        .try_for_each(|column| column.finish(count, found))
}

fn columns_of(program: &Program, body: &Struct) -> Option<Vec<Column>> {
    let mut columns = Vec::with_room(body.fields.len())?;
    for (ordinal, field) in body.fields.iter().enumerate() {
        if field.place != ordinal {
            return None; // the latest version lacks a field
        }
        columns.try_push(Column::of(program, field)?)?;
    }
    Some(columns)
}

/// Row to be added, and the columns.
type Place<'a> = (usize, &'a mut [Column]);

fn add_value(
    program: &Program,
    value: &[u8],
    api_key: u8,
    reveal: bool,
    latest: &Struct,
    place: Place<'_>,
) -> Option<()> {
    let mut reader = Reader::new(value);
    let (found, version) = read_frame(&mut reader)?;
    if found != api_key {
        return None;
    }
    let record = program.record(found, version)?;
    let shows = Shows {
        reveal,
        guard: record.guard,
    };
    let body = program.structs.get(record.body)?;
    let rest = add_struct(program, body, latest, reader, &shows, place)?;
    rest.is_at_end().then_some(())
}

/// Add a row to the columns of `latest`: the fields of the struct at the reader, in the order of
/// its bytes. Fields that it lacks are absent. Return the reader after it.
///
/// The reader is passed by value, so that it stays in registers.
fn add_struct<'a>(
    program: &Program,
    body: &Struct,
    latest: &Struct,
    mut reader: Reader<'a>,
    shows: &Shows,
    (row, columns): Place<'_>,
) -> Option<Reader<'a>> {
    if body.hides && !shows.reveal {
        check_public(program, body, reader.rest(), shows)?;
    }
    for &at in &body.untagged {
        let field = body.fields.get(at)?;
        let column = columns.get_mut(field.place)?;
        column.add_field(program, field, &mut reader, shows, row)?;
    }
    let mut tagged = body.by_tag.iter().filter_map(|&at| body.fields.get(at));
    for _ in 0..reader.unsigned_varint()? {
        let tag = reader.unsigned_varint()?;
        let length = usize::try_from(reader.unsigned_varint()?).ok()?;
        let mut inner = Reader::new(reader.take(length)?);
        // Nothing is left for a tag that is unknown or does not ascend.
        let field = tagged.find(|field| field.tag == Some(tag))?;
        let column = columns.get_mut(field.place)?;
        column.add_field(program, field, &mut inner, shows, row)?;
        if !inner.is_at_end() {
            return None;
        }
    }
    if body.fields.len() == latest.fields.len() {
        return Some(reader);
    }
    let mut present = body.fields.iter().peekable();
    for declared in &latest.fields {
        let is_present = present.next_if(|field| field.place == declared.place);
        if is_present.is_none() && !can_be_absent(declared) {
            return None;
        }
    }
    Some(reader)
}

/// Return whether a record may lack a field, because its default is in the tables.
const fn can_be_absent(field: &Field) -> bool {
    !matches!(field.shape, Shape::Scalar(Kind::Float64 | Kind::Uuid))
}

/// Return `None` unless all fields of the struct at the start of `bytes` may be shown.
fn check_public(program: &Program, body: &Struct, bytes: &[u8], shows: &Shows) -> Option<()> {
    let mut located = [None; FIELDS_MAX];
    program.locate(body, &mut Reader::new(bytes), &mut located)?;
    for (field, bytes) in body.fields.iter().zip(located.iter()) {
        if field.hidden
            && let Some(bytes) = bytes
            && !program.is_public(body, &located, shows, bytes)?
        {
            return None;
        }
    }
    Some(())
}

impl Column {
    /// Return the column of a field of the latest version.
    fn of(program: &Program, field: &Field) -> Option<Self> {
        if field.tag.is_some() && !can_be_absent(field) {
            return None;
        }
        let absent = match field.shape {
            Shape::Scalar(Kind::Uuid | Kind::String) | Shape::Array(_) | Shape::Structs(_) => {
                if field.nullable && field.default == -1 {
                    Absent::Null
                } else {
                    Absent::Empty
                }
            }
            Shape::Scalar(Kind::Float64) => Absent::Number([0; 8]),
            Shape::Scalar(kind) => Absent::Number(number(kind, field.default)?),
        };
        Self::new(program, field.shape, field.nullable, absent)
    }

    fn new(program: &Program, shape: Shape, nullable: bool, absent: Absent) -> Option<Self> {
        let inner = match shape {
            Shape::Scalar(_) => Vec::new(),
            Shape::Array(kind) => {
                let scalar = Shape::Scalar(kind);
                let absent = if has_ends(scalar) {
                    Absent::Empty
                } else {
                    Absent::Number([0; 8])
                };
                let mut inner = Vec::with_room(1)?;
                inner.try_push(Self::new(program, scalar, false, absent)?)?;
                inner
            }
            Shape::Structs(element) => columns_of(program, program.structs.get(element)?)?,
        };
        (!nullable || has_ends(shape)).then_some(Self {
            valid: Vec::new(),
            ends: Vec::new(),
            data: Vec::new(),
            shape,
            nullable,
            absent,
            room: 0,
            inner,
        })
    }

    /// Reserve memory for `count` rows, except for their strings and elements.
    fn try_room(&mut self, count: usize) -> Option<()> {
        match self.shape {
            Shape::Scalar(kind) if !has_ends(self.shape) => {
                self.data = reused(count.checked_mul(column_width(kind)?)?)?;
            }
            _ => self.room = count,
        }
        Some(())
    }

    /// Add absent rows up to `row`. `None` if there already are more.
    #[inline(never)]
    fn fill(&mut self, row: usize) -> Option<()> {
        let (Shape::Scalar(kind), Absent::Number(number)) = (self.shape, self.absent) else {
            return self.fill_ends(row);
        };
        let width = column_width(kind)?;
        let byte_count = row.checked_mul(width)?.checked_sub(self.data.len())?;
        if width == 1 {
            let [byte, ..] = number;
            return self.data.try_resize(row, byte);
        }
        for _ in 0..byte_count / width {
            self.data.try_extend(number.get(..width)?)?;
        }
        Some(())
    }

    #[cold]
    fn begin_ends(&mut self) -> Option<()> {
        self.ends = reused(self.room.checked_add(1)?)?;
        if let Shape::Scalar(Kind::Uuid) = self.shape {
            self.data = reused(self.room.checked_mul(UUID_CHARACTERS)?)?;
        }
        self.ends.try_push(0)
    }

    #[inline(never)]
    fn fill_ends(&mut self, row: usize) -> Option<()> {
        if self.ends.is_empty() {
            self.begin_ends()?;
        }
        let (&end, written) = (self.ends.last()?, self.ends.len().checked_sub(1)?);
        row.checked_sub(written)?;
        self.ends.try_resize(row.checked_add(1)?, end)?;
        if self.nullable && matches!(self.absent, Absent::Empty) {
            for absent in written..row {
                set_bit(&mut self.valid, absent, self.room)?;
            }
        }
        Some(())
    }

    /// Remove the rows from `count` on.
    fn truncate(&mut self, count: usize) -> Option<()> {
        if let Shape::Scalar(kind) = self.shape
            && !has_ends(self.shape)
        {
            self.data.truncate(count.checked_mul(column_width(kind)?)?);
            return Some(());
        }
        self.ends.truncate(count.checked_add(1)?);
        let end = usize::try_from(self.ends.last().copied().unwrap_or(0)).ok()?;
        self.data.truncate(end);
        self.valid.truncate(count.div_ceil(BITS));
        if let (Some(last), 1..) = (self.valid.get_mut(count / BITS), count % BITS) {
            *last &= (1 << (count % BITS)) - 1;
        }
        self.inner
            .iter_mut()
            .try_for_each(|column| column.truncate(end))
    }

    /// Add the value at the reader to a row.
    #[inline(always)]
    fn add_field(
        &mut self,
        program: &Program,
        field: &Field,
        reader: &mut Reader<'_>,
        shows: &Shows,
        row: usize,
    ) -> Option<()> {
        if let Shape::Scalar(kind) = field.shape {
            return self.add_scalar(kind, reader, row);
        }
        let Some(count) = read_length(field.nullable, reader)? else {
            return self.add_null(row);
        };
        let first = usize::try_from(self.ends.last().copied().unwrap_or(0)).ok()?;
        match (field.shape, self.shape) {
            (Shape::Structs(element), Shape::Structs(latest)) => {
                let body = program.structs.get(element)?;
                let latest = program.structs.get(latest)?;
                for at in first..first.checked_add(count)? {
                    let place = (at, self.inner.as_mut_slice());
                    let element = Reader::new(reader.rest());
                    *reader = add_struct(program, body, latest, element, shows, place)?;
                }
            }
            (Shape::Array(Kind::Int32), _) => {
                let bytes = reader.take(count.checked_mul(size_of::<i32>())?)?;
                self.inner.first_mut()?.add_int32s(bytes)?;
            }
            (Shape::Array(kind), _) => {
                let elements = self.inner.first_mut()?;
                for at in first..first.checked_add(count)? {
                    elements.add_scalar(kind, reader, at)?;
                }
            }
            _ => return None,
        }
        self.end_row(row, count)
    }

    #[inline(always)]
    fn add_scalar(&mut self, kind: Kind, reader: &mut Reader<'_>, row: usize) -> Option<()> {
        match kind {
            Kind::Uuid => {
                let text = uuid_text(reader.array()?);
                self.begin_row(row)?;
                self.data.try_extend(&text)?;
                self.end_row(row, UUID_CHARACTERS)
            }
            Kind::String => {
                let Some(length) = read_length(self.nullable, reader)? else {
                    return self.add_null(row);
                };
                if length > STRING_BYTES_MAX {
                    return None;
                }
                let text = std::str::from_utf8(reader.take(length)?).ok()?;
                self.data.try_extend(text.as_bytes())?;
                self.end_row(row, length)
            }
            Kind::Bool => self.add_number(row, [u8::from(reader.byte()? != 0)]),
            Kind::Int8 => self.add_number(row, [reader.byte()?]),
            Kind::Int16 => {
                let value = i16::from_be_bytes(reader.array()?);
                self.add_number(row, value.to_ne_bytes())
            }
            Kind::UInt16 => {
                let value = u16::from_be_bytes(reader.array()?);
                self.add_number(row, i32::from(value).to_ne_bytes())
            }
            Kind::Int32 => {
                let value = i32::from_be_bytes(reader.array()?);
                self.add_number(row, value.to_ne_bytes())
            }
            Kind::Int64 | Kind::Float64 => {
                let value = u64::from_be_bytes(reader.array()?);
                self.add_number(row, value.to_ne_bytes())
            }
        }
    }

    #[inline(always)]
    fn add_number<const N: usize>(&mut self, row: usize, number: [u8; N]) -> Option<()> {
        if self.data.len() != row.checked_mul(N)? {
            self.fill(row)?;
        }
        self.data.try_extend(&number)
    }

    /// Add 32-bit numbers in network byte order.
    #[inline]
    fn add_int32s(&mut self, bytes: &[u8]) -> Option<()> {
        let numbers = bytes.as_chunks::<4>().0.iter();
        self.data
            .try_extend_arrays(numbers.map(|number| i32::from_be_bytes(*number).to_ne_bytes()))
    }

    /// Reserve the memory, and add the absent rows that precede a row of strings or arrays.
    #[inline(always)]
    fn begin_row(&mut self, row: usize) -> Option<()> {
        if self.ends.len() == row.checked_add(1)? {
            return Some(());
        }
        self.fill_ends(row)
    }

    /// End a row of strings or arrays after `count` more bytes or elements.
    #[inline(always)]
    fn end_row(&mut self, row: usize, count: usize) -> Option<()> {
        self.begin_row(row)?;
        let end = self.ends.last()?.checked_add(i32::try_from(count).ok()?)?;
        self.ends.try_push(end)?;
        if self.nullable {
            set_bit(&mut self.valid, row, self.room)?;
        }
        Some(())
    }

    fn add_null(&mut self, row: usize) -> Option<()> {
        if !self.nullable {
            return None;
        }
        if matches!(self.absent, Absent::Null) {
            return Some(()); // like an absent one
        }
        self.begin_row(row)?;
        let end = *self.ends.last()?;
        self.ends.try_push(end)
    }

    /// Append the buffers of `count` rows, and those of the inner columns.
    fn finish(mut self, count: usize, found: &mut Vec<Option<Buffers>>) -> Option<()> {
        if matches!(self.absent, Absent::Null) && self.ends.is_empty() {
            return found.try_push(None);
        }
        self.fill(count)?;
        if !has_ends(self.shape) {
            let is_bool = matches!(self.shape, Shape::Scalar(Kind::Bool));
            return found.try_push(Some(Buffers {
                valid: None,
                ends: None,
                data: if is_bool {
                    bits_of(&self.data)?
                } else {
                    self.data
                },
            }));
        }
        let end = usize::try_from(*self.ends.last()?).ok()?;
        found.try_push(Some(Buffers {
            valid: if self.nullable {
                bitmap(self.valid, count)?
            } else {
                None
            },
            ends: Some(self.ends),
            data: self.data,
        }))?;
        finish(self.inner, end, found)
    }
}

/// Return whether a column has strings or arrays.
const fn has_ends(shape: Shape) -> bool {
    !matches!(shape, Shape::Scalar(kind) if !matches!(kind, Kind::String | Kind::Uuid))
}

/// Return Arrow's bitmap for one byte per row.
fn bits_of(flags: &[u8]) -> Option<Vec<u8>> {
    let mut bits = Vec::with_room(flags.len().div_ceil(BITS))?;
    for rows in flags.chunks(BITS) {
        bits.try_push(rows.iter().rev().fold(0, |bits, row| bits << 1 | row))?;
    }
    Some(bits)
}

/// Return a number or boolean from the tables in native byte order; `None` if out of bounds.
fn number(kind: Kind, value: i64) -> Option<[u8; 8]> {
    let mut number = [0; 8];
    let mut write = |bytes: &[u8]| {
        number.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(())
    };
    match kind {
        Kind::Bool | Kind::Int8 => write(&i8::try_from(value).ok()?.to_ne_bytes())?,
        Kind::Int16 => write(&i16::try_from(value).ok()?.to_ne_bytes())?,
        Kind::UInt16 | Kind::Int32 => write(&i32::try_from(value).ok()?.to_ne_bytes())?,
        Kind::Int64 => write(&value.to_ne_bytes())?,
        Kind::Float64 | Kind::Uuid | Kind::String => return None,
    }
    Some(number)
}

/// Return the number of bytes of a row.
const fn column_width(kind: Kind) -> Option<usize> {
    match kind {
        Kind::UInt16 => Some(4), // Arrow's int32
        _ => kind.width(),
    }
}
