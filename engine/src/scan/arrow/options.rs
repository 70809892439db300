//! What can be chosen about batches, and what became of it.

use crate::scan::ScanStats;

/// What a `numeric` column becomes when no decimal type holds all its values: one without precision, or with more than
/// 76 digits. `numeric(p, s)` of up to 76 digits is always an exact `Decimal128` or `Decimal256`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumericPolicy {
    /// `Utf8`: the text that the server prints, with every digit, `NaN` and `Infinity` included.
    #[default]
    Text,
    /// `Decimal128` (up to 38 digits) or `Decimal256` (up to 76). A value that does not fit without rounding is an
    /// error that names column and row.
    Decimal {
        /// Digits in all, 1 to 76.
        precision: u8,
        /// Digits behind the point; negative: zeros before it. At most `precision`.
        scale: i8,
    },
    /// `Float64`, the nearest one: **digits beyond the 15th or so are lost**. Values beyond its range are errors.
    LossyFloat64,
}

/// What happens to NaN and the infinities of a `numeric` that becomes a decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialNumericPolicy {
    /// An error that names column and row.
    #[default]
    Error,
    /// NULL, counted in [`BatchStats::replaced`]. The fields are then nullable.
    Null,
}

/// What happens to `infinity` and `-infinity` of dates, timestamps and (PostgreSQL 17 and later) intervals, and to
/// finite values that the Arrow type cannot hold: microseconds since 1970 end in January 294247, nanoseconds in 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InfinityPolicy {
    /// An error that names column and row.
    #[default]
    Error,
    /// NULL, counted in [`BatchStats::replaced`]. The fields are then nullable.
    Null,
    /// The largest or smallest value of the Arrow type, counted in [`BatchStats::replaced`].
    Saturate,
}

/// The unit of `timestamp` and `timestamptz`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampUnit {
    /// As PostgreSQL has them.
    #[default]
    Microsecond,
    /// Only the years 1677 to 2262; others are dealt with by the [`InfinityPolicy`].
    Nanosecond,
}

/// What an `interval` becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IntervalPolicy {
    /// `Utf8`, as the server prints it.
    #[default]
    Text,
    /// `Interval(MonthDayNano)`; a time part beyond 292 years is an error.
    MonthDayNano,
}

/// What arrays become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrayPolicy {
    /// `Utf8`, as the server prints them: any number of dimensions, any bounds.
    #[default]
    Text,
    /// `List` of what the element type becomes (element types that have no Arrow type of their own become text), for
    /// columns that were not declared with several dimensions. PostgreSQL does not hold values to that declaration: an
    /// array of several dimensions, or one that does not count from 1, is an error that names column and row.
    List,
}

/// What text becomes: text types, and what is printed because Arrow has no such type and can hold text of users
/// (`jsonb`, arrays).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextPolicy {
    /// `Utf8`. Text of databases in another encoding is converted as the server would convert it. Bytes that are no
    /// text in the encoding are an error that names column and row; so is what is not ASCII in the encodings that
    /// cannot be converted: `SQL_ASCII`, `EUC_TW`, `EUC_JIS_2004`, `MULE_INTERNAL`.
    #[default]
    Utf8,
    /// `Binary`: the bytes in the database's encoding, unchecked.
    Binary,
}

/// How rows become batches. The defaults lose nothing: what Arrow cannot hold exactly is text or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Rows of a batch at most. 8192.
    pub max_rows: usize,
    /// Bytes of a batch's arrays at most: values, offsets. 16 MiB; less than 2 GiB, so that no 32-bit offset
    /// overflows. A row that alone is larger is a batch of its own.
    pub max_bytes: usize,
    /// For `numeric` columns that no decimal type holds. Text.
    pub numeric: NumericPolicy,
    /// For these `numeric` columns in any case, by name.
    pub numeric_columns: Vec<(String, NumericPolicy)>,
    /// For NaN and infinities in decimals. An error.
    pub numeric_special: SpecialNumericPolicy,
    /// For infinities of dates, timestamps and intervals. An error.
    pub infinity: InfinityPolicy,
    /// Of timestamps. Microseconds.
    pub timestamp_unit: TimestampUnit,
    /// For intervals. Text.
    pub interval: IntervalPolicy,
    /// For arrays. Text.
    pub arrays: ArrayPolicy,
    /// For text types. UTF-8.
    pub text: TextPolicy,
    /// Refuse columns of types that have no known text form instead of giving their bytes as `Binary`. No.
    pub strict: bool,
    /// Declare all fields nullable. Else those of columns with NOT NULL are not, and a NULL in one is an error:
    /// PostgreSQL 18 can have such (constraints that are NOT VALID). No.
    pub all_nullable: bool,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            max_rows: 8192,
            max_bytes: 16 << 20,
            numeric: NumericPolicy::default(),
            numeric_columns: Vec::new(),
            numeric_special: SpecialNumericPolicy::default(),
            infinity: InfinityPolicy::default(),
            timestamp_unit: TimestampUnit::default(),
            interval: IntervalPolicy::default(),
            arrays: ArrayPolicy::default(),
            text: TextPolicy::default(),
            strict: false,
            all_nullable: false,
        }
    }
}

/// What a scan into batches did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchStats {
    /// The scan; its `rows` are those of the batches given out or being filled.
    pub scan: ScanStats,
    /// Batches that were given out.
    pub batches: u64,
    /// Values that a policy replaced by NULL or by the end of a range.
    pub replaced: u64,
}
