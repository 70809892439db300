//! LIKE: `%` stands for any characters, `_` for one, the escape character takes the meaning from the next one.

use super::bytes::Encoding;

/// A pattern taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    parts: Vec<Part>,
    encoding: Encoding,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Bytes(Vec<u8>),
    One,
    Any,
}

impl Pattern {
    /// # Errors
    /// A pattern that ends in the escape character, in the server's words.
    pub(super) fn new(text: &str, escape: Option<char>, encoding: Encoding) -> Result<Self, &'static str> {
        let mut parts: Vec<Part> = Vec::new();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            let plain = match character {
                _ if Some(character) == escape => {
                    Some(characters.next().ok_or("LIKE pattern must not end with escape character")?)
                }
                '%' | '_' => None,
                _ => Some(character),
            };
            match (plain, parts.last_mut()) {
                (Some(plain), Some(Part::Bytes(bytes))) => push(plain, bytes),
                (Some(plain), _) => {
                    let mut bytes = Vec::new();
                    push(plain, &mut bytes);
                    parts.push(Part::Bytes(bytes));
                }
                (None, Some(Part::Any)) if character == '%' => {}
                (None, _) => parts.push(if character == '%' { Part::Any } else { Part::One }),
            }
        }
        Ok(Self { parts, encoding })
    }

    /// Whether a character is stood for, which needs to know where characters end.
    pub(super) fn counts_characters(&self) -> bool {
        self.parts.contains(&Part::One)
    }

    /// Whether all of `text` fits.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        // Where to go on after a mismatch: behind the last `%`, one character later.
        let mut retry: Option<(usize, &[u8])> = None;
        let (mut part, mut rest) = (0, text);
        loop {
            let fits = match self.parts.get(part) {
                Some(Part::Any) => {
                    part += 1;
                    if part == self.parts.len() {
                        return true;
                    }
                    retry = Some((part, rest));
                    continue;
                }
                Some(Part::Bytes(bytes)) => rest.strip_prefix(&bytes[..]),
                Some(Part::One) => self.encoding.skip_character(rest),
                None if rest.is_empty() => return true,
                None => None,
            };
            match (fits, &mut retry) {
                (Some(behind), _) => {
                    part += 1;
                    rest = behind;
                }
                (None, Some((again, from))) => match self.encoding.skip_character(from) {
                    Some(later) => {
                        *from = later;
                        (part, rest) = (*again, later);
                    }
                    None => return false,
                },
                (None, None) => return false,
            }
        }
    }
}

fn push(character: char, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_the_server_says() {
        for (text, pattern, fits) in [
            ("abc", "abc", true),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "%b%", true),
            ("abc", "a_c", true),
            ("aéc", "a_c", true),
            ("abc", "_", false),
            ("", "", true),
            ("", "%", true),
            ("", "_", false),
            ("a", "", false),
            ("a%c", r"a\%c", true),
            ("abc", r"a\%c", false),
            (r"a\c", r"a\\c", true),
            ("mississippi", "%iss%ip%", true),
            ("mississippi", "%iss%ix%", false),
            ("aaa", "%a_a", true),
            ("aaaa", "%%__%", true),
            ("é", "__", false),
            ("abc", "abc_%", false),
        ] {
            let pattern = Pattern::new(pattern, Some('\\'), Encoding::Utf8).expect("a pattern");
            assert_eq!(pattern.matches(text.as_bytes()), fits, "{text} {pattern:?}");
        }
        assert!(Pattern::new("a\\", Some('\\'), Encoding::Utf8).is_err());
        assert!(Pattern::new("a\\", None, Encoding::Utf8).is_ok_and(|p| p.matches(b"a\\")));
        assert!(Pattern::new("50!%", Some('!'), Encoding::Utf8).is_ok_and(|p| p.matches(b"50%")));
    }
}
