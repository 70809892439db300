//! Plots as SVG texts.

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

pub(super) const BLUE: RGBColor = RGBColor(47, 111, 179);
pub(super) const ORANGE: RGBColor = RGBColor(222, 125, 44);
pub(super) const GREEN: RGBColor = RGBColor(72, 150, 93);
pub(super) const PURPLE: RGBColor = RGBColor(132, 94, 168);
pub(super) const GREY: RGBColor = RGBColor(150, 156, 163);
const INK: RGBColor = RGBColor(38, 43, 48);
const FAINT: RGBColor = RGBColor(222, 226, 230);
const WIDTH: u32 = 860;
const BAR: i32 = 26;
const LABELS: i32 = 250;

/// A piece of a bar.
pub(super) struct Piece {
    pub(super) value: f64,
    pub(super) color: RGBColor,
}

/// A horizontal bar of pieces.
pub(super) struct BarLine {
    pub(super) label: String,
    pub(super) pieces: Vec<Piece>,
    /// Least and most of the runs.
    pub(super) range: Option<(f64, f64)>,
    /// Behind the bar.
    pub(super) note: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws on a fresh picture of `height`. A plot that cannot be drawn says so in its place.
fn picture(height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let result = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area).and_then(|()| area.present().map_err(Into::into))
    };
    match result {
        // The size follows the page's width.
        Ok(()) => svg.replacen(&format!("width=\"{WIDTH}\" height=\"{height}\""), "class=\"plot\" role=\"img\"", 1),
        Err(error) => format!("<p>This plot cannot be drawn: {}</p>", super::escape(&error.to_string())),
    }
}

fn text(area: &Area<'_>, at: (i32, i32), text: &str, size: i32, color: RGBColor, across: HPos) -> Drawn {
    let style = ("sans-serif", size).into_font().color(&color).pos(Pos::new(across, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// A round number of at least `most` and steps to it.
fn scale(most: f64) -> (f64, Vec<f64>) {
    let most = if most > 0.0 { most * 1.02 } else { 1.0 };
    let power = 10f64.powf((most / 4.0).log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| most / s <= 5.0).unwrap_or(power * 10.0);
    let count = (most / step).ceil();
    (count * step, (0..=count as u32).map(|i| f64::from(i) * step).collect())
}

/// Horizontal bars; `marks` are lines across them, each with what it stands for.
pub(super) fn bars(unit: &str, lines: &[BarLine], marks: &[(String, f64)]) -> String {
    let top = 14 + 18 * marks.len() as i32;
    let height = top + BAR * lines.len() as i32 + 44;
    let longest = lines.iter().map(|l| l.pieces.iter().map(|p| p.value).sum::<f64>().max(l.range.map_or(0.0, |r| r.1)));
    let (most, steps) = scale(longest.chain(marks.iter().map(|m| m.1)).fold(0.0, f64::max));
    let right = WIDTH as i32 - 150;
    let x = |value: f64| LABELS + (value / most * f64::from(right - LABELS)) as i32;
    picture(height as u32, |area| {
        let bottom = top + BAR * lines.len() as i32;
        for step in &steps {
            area.draw(&PathElement::new(vec![(x(*step), top), (x(*step), bottom)], FAINT))?;
            text(area, (x(*step), bottom + 12), &short(*step), 13, INK, HPos::Center)?;
        }
        text(area, ((LABELS + right) / 2, bottom + 32), unit, 13, INK, HPos::Center)?;
        for (number, line) in lines.iter().enumerate() {
            let y = top + BAR * number as i32;
            text(area, (LABELS - 10, y + BAR / 2), &line.label, 14, INK, HPos::Right)?;
            let mut from = 0.0;
            for piece in &line.pieces {
                let corners = [(x(from), y + 4), (x(from + piece.value), y + BAR - 4)];
                area.draw(&Rectangle::new(corners, piece.color.filled()))?;
                from += piece.value;
            }
            if let Some((least, greatest)) = line.range {
                let middle = y + BAR / 2;
                area.draw(&PathElement::new(vec![(x(least), middle), (x(greatest), middle)], INK.stroke_width(1)))?;
                for end in [least, greatest] {
                    area.draw(&PathElement::new(
                        vec![(x(end), middle - 4), (x(end), middle + 4)],
                        INK.stroke_width(1),
                    ))?;
                }
            }
            let end = x(from.max(line.range.map_or(0.0, |r| r.1)));
            text(area, (end + 8, y + BAR / 2), &line.note, 13, INK, HPos::Left)?;
        }
        for (number, (label, value)) in marks.iter().enumerate() {
            let y = 10 + 18 * number as i32;
            let path = vec![(x(*value), y + 8), (x(*value), bottom)];
            area.draw(&PathElement::new(path, RED.mix(0.75).stroke_width(2)))?;
            text(
                area,
                (x(*value), y),
                label,
                13,
                RGBColor(190, 40, 40),
                if *value > most / 2.0 { HPos::Right } else { HPos::Left },
            )?;
        }
        Ok(())
    })
}

/// One line of points, by a name.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) color: RGBColor,
    /// Places are those of the labels.
    pub(super) points: Vec<(usize, f64)>,
}

/// Lines over steps that are equally far apart whatever they stand for.
pub(super) fn lines(across: &str, up: &str, labels: &[String], series: &[Series]) -> String {
    let most = series.iter().flat_map(|s| s.points.iter().map(|p| p.1)).fold(0.0, f64::max);
    let (most, steps) = scale(most);
    let (left, right, top, height) = (70, WIDTH as i32 - 150, 34, 308);
    let bottom = height - 56;
    let last = labels.len().saturating_sub(1).max(1) as i32;
    let x = |place: usize| left + 20 + (right - left - 40) * place as i32 / last;
    let y = |value: f64| bottom - (value / most * f64::from(bottom - top)) as i32;
    picture(height as u32, |area| {
        for step in &steps {
            area.draw(&PathElement::new(vec![(left, y(*step)), (right, y(*step))], FAINT))?;
            text(area, (left - 8, y(*step)), &short(*step), 13, INK, HPos::Right)?;
        }
        for (place, label) in labels.iter().enumerate() {
            text(area, (x(place), bottom + 14), label, 13, INK, HPos::Center)?;
        }
        text(area, ((left + right) / 2, bottom + 38), across, 13, INK, HPos::Center)?;
        text(area, (left - 62, 10), up, 13, INK, HPos::Left)?;
        let mut taken: Vec<i32> = Vec::new();
        for one in series {
            let path: Vec<(i32, i32)> = one.points.iter().map(|&(place, value)| (x(place), y(value))).collect();
            area.draw(&PathElement::new(path.clone(), one.color.stroke_width(2)))?;
            for point in &path {
                area.draw(&Circle::new(*point, 4, one.color.filled()))?;
            }
            if let Some(&(end, at)) = path.last() {
                // Names do not lie on each other.
                let mut place = at;
                while taken.iter().any(|t| (t - place).abs() < 15) {
                    place += 15;
                }
                taken.push(place);
                text(area, (end + 10, place), &one.name, 13, one.color, HPos::Left)?;
            }
        }
        Ok(())
    })
}

/// As few digits as tell it.
pub(super) fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v >= 1e6 => format!("{}M", trim(v / 1e6)),
        v if v >= 1e4 => format!("{}k", trim(v / 1e3)),
        v => trim(v),
    }
}

fn trim(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round_and_hold_everything() {
        assert_eq!(scale(3.6), (4.0, vec![0.0, 1.0, 2.0, 3.0, 4.0]));
        for most in [1e-6, 0.3, 0.99, 1.0, 7.0, 42.0, 1e7] {
            let (end, steps) = scale(most);
            assert!(end >= most && end <= most * 2.6 && (2..=7).contains(&steps.len()), "{most}: {end}");
        }
        assert_eq!([short(0.0), short(12_300.0), short(2.5e6), short(0.125)], ["0", "12.3k", "2.5M", "0.12"]);
    }

    #[test]
    fn plots_are_drawn() {
        let line = |value| BarLine {
            label: "a <b>".to_owned(),
            pieces: vec![Piece { value, color: BLUE }],
            range: Some((value / 2.0, value)),
            note: "note".to_owned(),
        };
        let svg = bars("GB/s", &[line(1.0), line(0.0)], &[("limit".to_owned(), 2.0)]);
        assert!(svg.starts_with("<svg") && svg.contains("limit") && svg.contains("&lt;b&gt;"), "{svg}");
        let series = Series { name: "one".to_owned(), color: GREEN, points: vec![(0, 1.0), (1, 2.0)] };
        assert!(lines("x", "y", &["1".to_owned(), "2".to_owned()], &[series]).contains("one"));
        assert!(lines("x", "y", &[], &[]).starts_with("<svg"));
    }
}
