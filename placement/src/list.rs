//! The kernel's list syntax for CPUs and nodes: `0,8,252-255` (cpuset(7), "List format").

/// Numbers beyond this are refused: the kernel has at most 1024 nodes (`NODES_SHIFT` 10) and 8192 CPUs, and a damaged
/// file shall not make us allocate without bound.
const LIMIT: u32 = 1 << 16;

/// A text is not a list of numbers and ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a list such as 0,8,252-255")]
pub struct ListError {
    /// The text.
    pub text: String,
}

/// Reads `0,8,252-255` (also with a stride, `0-14:2`, or a group, `0-31:1/4`); ascending and without duplicates. The
/// empty text is the empty list.
///
/// # Errors
/// [`ListError`] for anything else, ranges that end before they begin, and numbers from 65536.
pub fn parse(text: &str) -> Result<Vec<u32>, ListError> {
    let error = || ListError { text: text.trim().to_owned() };
    let mut list = Vec::new();
    for item in text.trim().split(',').map(str::trim) {
        if item.is_empty() && text.trim().is_empty() {
            break;
        }
        let (range, pattern) = item.split_once(':').map_or((item, None), |(range, pattern)| (range, Some(pattern)));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first).ok_or_else(error)?, number(last).ok_or_else(error)?);
        // `used/group`: of each group of CPUs the first `used`. A bare number is not the kernel's, but common: a stride.
        let (used, group) = match pattern.map(|p| p.split_once('/').unwrap_or(("1", p))) {
            None => (1, 1),
            Some((used, group)) => (number(used).ok_or_else(error)?, number(group).ok_or_else(error)?),
        };
        if first > last || last >= LIMIT || group == 0 || used == 0 || used > group {
            return Err(error());
        }
        list.extend((first..=last).filter(|n| (n - first) % group < used));
    }
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

fn number(text: &str) -> Option<u32> {
    // `u32::from_str` takes a sign, the kernel does not.
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Writes an ascending list as the kernel does; an empty one as `none`.
pub fn format(list: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = list;
    while let Some((&first, _)) = rest.split_first() {
        let run = rest.iter().zip(first..).take_while(|&(&n, expected)| n == expected).count();
        if !text.is_empty() {
            text.push(',');
        }
        text += &first.to_string();
        if run > 1 {
            text += &format!("-{}", rest[run - 1]);
        }
        rest = &rest[run..];
    }
    if text.is_empty() { "none".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_with_gaps_and_ranges() {
        assert_eq!(parse("0,8,252-255\n").unwrap(), [0, 8, 252, 253, 254, 255]);
        assert_eq!(parse("").unwrap(), [0; 0]);
        assert_eq!(parse("3,1-2,2").unwrap(), [1, 2, 3]);
        assert_eq!(parse("0-6:2").unwrap(), [0, 2, 4, 6]);
        assert_eq!(parse("0-7:1/4").unwrap(), [0, 4]);
        assert_eq!(format(&[0, 8, 252, 253, 254, 255]), "0,8,252-255");
        assert_eq!(format(&[0, 1, 3]), "0-1,3");
        assert_eq!(format(&[]), "none");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["a", "1-", "-1", "2-1", "1,,2", "0-99999999", "1-2:0", "+1", "4294967296", "0-3:5/4"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
