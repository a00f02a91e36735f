//! Sizes, times and shares as text: parsed from specs and arguments, and printed for specs and people.

use std::time::Duration;

/// The units of size, the largest first.
const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// The units of time in nanoseconds, the largest first.
const TIMES: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Most digits after the decimal point of a parsed number. 18 digits and the largest unit fit into 128 bits.
const DIGITS_MAX: usize = 18;

/// Parses a size in bytes from text such as `4096`, `64KiB`, `10G` or `1.5 GiB`. `K M G T` and `KiB MiB GiB TiB` are
/// powers of 1024.
///
/// # Errors
/// A description of the fault, in words that are printed after the value: `GB is ambiguous here; write GiB (2^30)`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let needed = "a size is needed, such as 4096, \"64KiB\" or \"10GiB\"";
    // Text without a number has no unit either.
    let bytes = if unit.is_empty() || number.is_empty() { 1 } else { size_unit(unit)? };
    scale(number, bytes).map_err(|problem| match problem {
        Problem::NotANumber => needed.to_owned(),
        Problem::Negative => "a size is 0 or more".to_owned(),
        Problem::TooFine => {
            "the size is not a whole number of bytes; write the size in a smaller unit".into()
        }
        Problem::TooLarge => {
            format!("the size is larger than {} bytes, the limit of 64 bits", u64::MAX)
        }
    })
}

fn size_unit(unit: &str) -> Result<u64, String> {
    for (power, (name, bytes)) in [40, 30, 20, 10, 0].into_iter().zip(SIZES) {
        let letter = &name[..1];
        if unit.eq_ignore_ascii_case(name) || unit.eq_ignore_ascii_case(letter) {
            return Ok(bytes);
        }
        if unit.eq_ignore_ascii_case(&format!("{letter}B")) {
            return Err(format!("the unit {unit} is ambiguous; write {name} (2^{power})"));
        }
    }
    Err(format!("unknown unit {unit:?}; write KiB, MiB, GiB or TiB, or no unit for bytes"))
}

/// Parses a time from text such as `100us`, `5ms`, `1.5s`, `1min` or `2h`.
///
/// # Errors
/// A description of the fault, in words that are printed after the value.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let needed = "a time is needed with its unit, such as \"100us\", \"5ms\", \"2s\" or \"1min\"";
    let nanoseconds = match (TIMES.iter().find(|(name, _)| *name == unit), unit) {
        (Some((_, nanoseconds)), _) => *nanoseconds,
        (None, "m") => return Err("the unit m is ambiguous; write min or ms".into()),
        (None, "") => return Err(needed.into()),
        (None, _) if number.is_empty() => return Err(needed.into()),
        (None, _) => {
            return Err(format!("unknown unit {unit:?} of a time; write us, ms, s, min, h or d"));
        }
    };
    let count = scale(number, nanoseconds).map_err(|problem| match problem {
        Problem::NotANumber => needed.to_owned(),
        Problem::Negative => "a time is 0 or more".to_owned(),
        Problem::TooFine => "the time is not a whole number of nanoseconds".into(),
        Problem::TooLarge => "the time is longer than 584 years".into(),
    })?;
    Ok(Duration::from_nanos(count))
}

/// Parses a share from 0 to 1 from text such as `0.01` or `1%`; the result is a fraction of 1.
///
/// # Errors
/// A description of the fault, in words that are printed after the value.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number / whole);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share from 0 to 1 is needed, such as 0.01 or \"1%\"".to_owned())
}

/// Splits `text` into a number and the unit after the number.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let unit = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    (text[..unit].trim_end(), &text[unit..])
}

enum Problem {
    NotANumber,
    Negative,
    TooFine,
    TooLarge,
}

/// Multiplies the decimal `number` with `unit`, without rounding.
fn scale(number: &str, unit: u64) -> Result<u64, Problem> {
    if let Some(positive) = number.strip_prefix('-') {
        return Err(scale(positive, unit).err().unwrap_or(Problem::Negative));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(Problem::NotANumber);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > DIGITS_MAX {
        return Err(Problem::TooFine);
    }
    let whole: u64 = whole.parse().map_err(|_| Problem::TooLarge)?;
    let ten = 10_u128.pow(fraction.len() as u32);
    let part = fraction.parse::<u128>().unwrap_or(0) * u128::from(unit);
    if !part.is_multiple_of(ten) {
        return Err(Problem::TooFine);
    }
    let total = u128::from(whole) * u128::from(unit) + part / ten;
    u64::try_from(total).map_err(|_| Problem::TooLarge)
}

/// Formats a number of bytes for people, to about three digits: `10 GiB`, `1.82 TiB`.
pub fn format_size(bytes: u64) -> String {
    format_in(bytes, &SIZES)
}

/// Formats a number of bytes for people, with the exact number: `10 GiB (10737418240 B)`.
pub fn format_exact(bytes: u64) -> String {
    let size = format_size(bytes);
    if bytes < SIZES[3].1 { size } else { format!("{size} ({bytes} B)") }
}

/// Formats a number of bytes for a spec, exactly: `64KiB`, `1862GiB`, `1000`.
pub fn write_size(bytes: u64) -> String {
    match SIZES[..4].iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Formats a time for people, to about three digits: `5 ms`, `1.5 s`.
pub fn format_duration(time: Duration) -> String {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if nanoseconds == 0 { "0 s".into() } else { format_in(nanoseconds, &TIMES) }
}

/// Formats a time for a spec, exactly: `5ms`, `90s`.
pub fn write_duration(time: Duration) -> String {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match TIMES.iter().find(|(_, unit)| nanoseconds > 0 && nanoseconds.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", nanoseconds / unit),
        None => "0s".into(),
    }
}

/// Formats a count in the largest unit that it reaches. A rounded fraction keeps its trailing zeros; an exact one
/// loses them.
fn format_in(count: u64, units: &[(&str, u64)]) -> String {
    let reaches = units.iter().find(|(_, unit)| count >= *unit);
    let (name, unit) = reaches.copied().unwrap_or((units[units.len() - 1].0, 1));
    let whole = count / unit;
    if count.is_multiple_of(unit) {
        return format!("{whole} {name}");
    }
    let digits = if whole < 10 { 2 } else { usize::from(whole < 100) };
    let ten = 10_u128.pow(digits as u32);
    let text = format!("{:.digits$}", count as f64 / unit as f64);
    let exact = (u128::from(count) * ten).is_multiple_of(u128::from(unit));
    let text = if exact { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {name}")
}
