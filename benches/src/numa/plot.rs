//! Line plots as SVG.

use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    element::{Circle, PathElement},
    prelude::{IntoDrawingArea, SVGBackend},
    series::LineSeries,
    style::{BLACK, Color, RGBColor, WHITE},
};
use std::{error::Error, ops::Range, path::Path};

/// Colours that colour-blind people can tell apart.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
];

/// One line: its name and its points.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// A plot.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) y_range: Range<f64>,
    pub(super) lines: Vec<Line>,
}

impl Plot {
    /// Writes it.
    pub(super) fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let area = SVGBackend::new(path, (760, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let xs = || self.lines.iter().flat_map(|(_, points)| points.iter().map(|p| p.0));
        let (least, most) = (xs().fold(f64::MAX, f64::min), xs().fold(f64::MIN, f64::max));
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(58)
            .build_cartesian_2d(least..most, self.y_range.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .draw()?;
        for ((name, points), colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
            let style = colour.stroke_width(2);
            let clip = |&(x, y): &(f64, f64)| (x, y.clamp(self.y_range.start, self.y_range.end));
            chart
                .draw_series(LineSeries::new(points.iter().map(clip), style))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
            chart.draw_series(points.iter().map(|p| Circle::new(clip(p), 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 13))
            .draw()?;
        area.present()?;
        Ok(())
    }
}
