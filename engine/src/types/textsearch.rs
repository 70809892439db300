//! tsvector and tsquery (`src/include/tsearch/ts_type.h`).

use super::{
    digits::push_u32,
    nested::{Bad, SmallStack, Text, align_up, bad, i32_at, u16_at, u32_at},
};

/// Appends a word between apostrophes; apostrophes and backslashes in it are doubled.
fn push_word(word: &[u8], out: &mut Vec<u8>) {
    out.push(b'\'');
    for &byte in word {
        if matches!(byte, b'\'' | b'\\') {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'\'');
}

/// Appends a tsvector: the number of lexemes, an entry for each (1 bit: has positions, 11 bits length, 20 bits offset),
/// lexemes and positions.
pub(super) fn vector(payload: &[u8], out: &mut Vec<u8>) -> Text {
    let count = usize::try_from(i32_at(payload, 0)?).map_err(|_| bad("a tsvector has a negative size"))?;
    let words = payload.get(count.saturating_mul(4).saturating_add(4)..).ok_or(bad("a tsvector is too short"))?;
    for i in 0..count {
        if i > 0 {
            out.push(b' ');
        }
        let entry = u32_at(payload, 4 + i * 4)?;
        let (len, at) = ((entry >> 1 & 0x7ff) as usize, (entry >> 12) as usize);
        push_word(words.get(at..at + len).ok_or(bad("a lexeme lies outside its tsvector"))?, out);
        if entry & 1 != 0 {
            positions(words, align_up(at + len, 2), out)?;
        }
    }
    Ok(())
}

fn positions(words: &[u8], at: usize, out: &mut Vec<u8>) -> Text {
    let count = usize::from(u16_at(words, at)?);
    for i in 0..count {
        out.push(if i == 0 { b':' } else { b',' });
        let position = u16_at(words, at + 2 + i * 2)?;
        push_u32((position & 0x3fff).into(), out);
        // Weight D, the lowest, is not shown.
        match position >> 14 {
            3 => out.push(b'A'),
            2 => out.push(b'B'),
            1 => out.push(b'C'),
            _ => {}
        }
    }
    Ok(())
}

const ITEM: usize = 12;
const NOT: u8 = 1;
const AND: u8 = 2;
const OR: u8 = 3;
const PHRASE: u8 = 4;

/// What is still to be written of a tsquery.
#[derive(Clone, Copy)]
enum Step {
    /// The tree at this item, inside an operator of this priority, maybe as the right side of a phrase.
    Tree {
        item: usize,
        outer: i8,
        right_of_phrase: bool,
    },
    /// ` op `.
    Operator {
        operator: u8,
        distance: u16,
    },
    Text(&'static str),
}

/// Appends a tsquery: the number of items, the items in prefix order (an operator's right side follows it, its left side
/// is `left` items further), the words, each with a NUL behind.
pub(super) fn query(payload: &[u8], out: &mut Vec<u8>) -> Text {
    let count = usize::try_from(i32_at(payload, 0)?).map_err(|_| bad("a tsquery has a negative size"))?;
    if count == 0 {
        return Ok(());
    }
    let words = payload.get(count.saturating_mul(ITEM).saturating_add(4)..).ok_or(bad("a tsquery is too short"))?;
    let items = &payload[4..4 + count * ITEM];
    let mut steps = SmallStack::<Step, 16>::new();
    steps.push(Step::Tree { item: 0, outer: -1, right_of_phrase: false });
    // In a sound query each item is met once; in a damaged one paths may meet again and again.
    let mut left = count;
    while let Some(step) = steps.pop() {
        match step {
            Step::Text(text) => out.extend_from_slice(text.as_bytes()),
            Step::Operator { operator, distance } => push_operator(operator, distance, out),
            Step::Tree { item, outer, right_of_phrase } => {
                left = left.checked_sub(1).ok_or(bad("a tsquery is not a tree"))?;
                let item_bytes = items
                    .get(item.saturating_mul(ITEM)..)
                    .and_then(|rest| rest.first_chunk::<ITEM>())
                    .ok_or(bad("a tsquery operator lacks an operand"))?;
                match item_bytes[0] {
                    1 => operand(item_bytes, words, out)?,
                    2 => operator(item_bytes, item, outer, right_of_phrase, &mut steps, out)?,
                    _ => return Err(bad("a tsquery item is of no known type")),
                }
            }
        }
    }
    Ok(())
}

fn push_operator(operator: u8, distance: u16, out: &mut Vec<u8>) {
    match (operator, distance) {
        (AND, _) => out.extend_from_slice(b" & "),
        (OR, _) => out.extend_from_slice(b" | "),
        (_, 1) => out.extend_from_slice(b" <-> "),
        _ => {
            out.extend_from_slice(b" <");
            push_u32(distance.into(), out);
            out.extend_from_slice(b"> ");
        }
    }
}

/// Type, weights, prefix flag, CRC, then 12 bits of length and 20 bits of offset.
fn operand(item: &[u8; ITEM], words: &[u8], out: &mut Vec<u8>) -> Text {
    let place = u32_at(item, 8)?;
    let (len, at) = ((place & 0xfff) as usize, (place >> 12) as usize);
    push_word(words.get(at..at + len).ok_or(bad("a word lies outside its tsquery"))?, out);
    let (weights, prefix) = (item[1], item[2] != 0);
    if weights != 0 || prefix {
        out.push(b':');
    }
    if prefix {
        out.push(b'*');
    }
    for (bit, name) in [(3, b'A'), (2, b'B'), (1, b'C'), (0, b'D')] {
        if weights >> bit & 1 == 1 {
            out.push(name);
        }
    }
    Ok(())
}

/// Type, operator, distance of a phrase, offset of the left side.
fn operator(
    bytes: &[u8; ITEM],
    item: usize,
    outer: i8,
    right_of_phrase: bool,
    steps: &mut SmallStack<Step, 16>,
    out: &mut Vec<u8>,
) -> Result<(), Bad> {
    let (operator, distance, left) = (bytes[1], u16_at(bytes, 2)?, u32_at(bytes, 4)? as usize);
    let priority = match operator {
        NOT => 4,
        PHRASE => 3,
        AND => 2,
        OR => 1,
        _ => return Err(bad("a tsquery operator is of no known kind")),
    };
    // A phrase is read from the left: on the right side of another it needs them.
    let parentheses = priority < outer || operator == PHRASE && right_of_phrase;
    if parentheses {
        out.extend_from_slice(b"( ");
        steps.push(Step::Text(" )"));
    }
    let tree = |item, right_of_phrase| Step::Tree { item, outer: priority, right_of_phrase };
    if operator == NOT {
        out.push(b'!');
        steps.push(tree(item + 1, false));
    } else {
        if left == 0 {
            return Err(bad("a tsquery is not a tree"));
        }
        steps.push(tree(item + 1, operator == PHRASE));
        steps.push(Step::Operator { operator, distance });
        steps.push(tree(item.saturating_add(left), false));
    }
    Ok(())
}
