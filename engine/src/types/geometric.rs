//! point, lseg, path, box, polygon, line and circle: all made of float8.

use super::{
    float::push_f64,
    nested::{Text, bad, exactly, f64_at, i32_at},
};

/// The types.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Point,
    Lseg,
    Path,
    Box,
    Polygon,
    Line,
    Circle,
}

/// Appends a shape.
pub(super) fn write(shape: Shape, payload: &[u8], out: &mut Vec<u8>) -> Text {
    match shape {
        Shape::Point => points(&exactly::<16>(payload)?, "", "", out),
        Shape::Lseg => points(&exactly::<32>(payload)?, "[", "]", out),
        Shape::Box => points(&exactly::<32>(payload)?, "", "", out),
        // Number of points, whether it is closed, four unused bytes.
        Shape::Path => {
            let closed = i32_at(payload, 4)? != 0;
            let (open, close) = if closed { ("(", ")") } else { ("[", "]") };
            points(counted(payload, 12)?, open, close, out)
        }
        // Number of points, bounding box.
        Shape::Polygon => points(counted(payload, 36)?, "(", ")", out),
        Shape::Line => numbers(&exactly::<24>(payload)?, "{", "}", out),
        Shape::Circle => {
            let circle = exactly::<24>(payload)?;
            points(&circle[..16], "<", ",", out)?;
            push_f64(f64_at(&circle, 16)?, out);
            out.push(b'>');
            Ok(())
        }
    }
}

/// The points at `at` of a payload that begins with their number.
fn counted(payload: &[u8], at: usize) -> Result<&[u8], super::nested::Bad> {
    let count = usize::try_from(i32_at(payload, 0)?).map_err(|_| bad("a negative number of points"))?;
    payload.get(at..at.saturating_add(count.saturating_mul(16))).ok_or(bad("fewer points than the value says"))
}

/// Appends `(x,y),(x,y)...` between `open` and `close`.
fn points(points: &[u8], open: &str, close: &str, out: &mut Vec<u8>) -> Text {
    out.extend_from_slice(open.as_bytes());
    for (i, point) in points.chunks_exact(16).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        numbers(point, "(", ")", out)?;
    }
    out.extend_from_slice(close.as_bytes());
    Ok(())
}

/// Appends `a,b,...` between `open` and `close`.
fn numbers(numbers: &[u8], open: &str, close: &str, out: &mut Vec<u8>) -> Text {
    out.extend_from_slice(open.as_bytes());
    for at in (0..numbers.len()).step_by(8) {
        if at > 0 {
            out.push(b',');
        }
        push_f64(f64_at(numbers, at)?, out);
    }
    out.extend_from_slice(close.as_bytes());
    Ok(())
}
