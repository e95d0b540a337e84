//! The tables as a picture: a bar for each row that decodes, its range as a line.

use std::path::Path;

use plotters::prelude::*;

use crate::error::BenchError;
use crate::table::{Line, Report, Table};

const WIDTH: u32 = 900;
const ROW_HEIGHT: u32 = 26;
const TITLE_HEIGHT: u32 = 44;
const NAMES_WIDTH: i32 = 300;
/// Room for the figure behind the longest bar.
const FIGURE_WIDTH: i32 = 110;

/// Draws `report` to `path`.
///
/// # Errors
/// [`BenchError::Chart`].
pub(crate) fn draw(report: &Report, path: &Path) -> Result<(), BenchError> {
    let explain = |reason: String| BenchError::Chart { path: path.to_owned(), reason };
    let lines = |table: &Table| u32::try_from(decoding(table).count()).unwrap_or(0);
    let height = report.tables.iter().map(|table| TITLE_HEIGHT + ROW_HEIGHT * lines(table)).sum::<u32>() + 16;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| explain(error.to_string()))?;
    let mut top = 0_u32;
    for table in &report.tables {
        let at = i32::try_from(top).unwrap_or(0);
        draw_table(&root, table, at).map_err(explain)?;
        top += TITLE_HEIGHT + ROW_HEIGHT * lines(table);
    }
    root.present().map_err(|error| explain(error.to_string()))
}

fn decoding(table: &Table) -> impl Iterator<Item = &Line> {
    table.lines.iter().filter(|line| !line.is_prefill)
}

fn draw_table(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    table: &Table,
    top: i32,
) -> Result<(), String> {
    let text = |error: DrawingAreaErrorKind<_>| -> String { format!("{error:?}") };
    let font = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
    let title = format!("{}: tokens a second", table.name);
    root.draw(&Text::new(title, (12, top + 16), font(16))).map_err(text)?;
    let most = decoding(table).map(|line| line.range[1]).fold(f64::MIN_POSITIVE, f64::max);
    let bars_width = i32::try_from(WIDTH).unwrap_or(0) - NAMES_WIDTH - FIGURE_WIDTH;
    #[expect(clippy::cast_possible_truncation, reason = "within the picture")]
    let x = |rate: f64| NAMES_WIDTH + (rate / most * f64::from(bars_width)) as i32;
    let row_height = i32::try_from(ROW_HEIGHT).unwrap_or(0);
    for (line, i) in decoding(table).zip(0..) {
        let Line { name, rate, range: [min, max], .. } = line;
        let y = top + i32::try_from(TITLE_HEIGHT).unwrap_or(0) + row_height * i;
        root.draw(&Text::new(name.clone(), (12, y + 4), font(13))).map_err(text)?;
        let bar = Rectangle::new([(NAMES_WIDTH, y), (x(*rate), y + 16)], RGBColor(70, 130, 180).filled());
        root.draw(&bar).map_err(text)?;
        let range = PathElement::new(vec![(x(*min), y + 8), (x(*max), y + 8)], BLACK.stroke_width(1));
        root.draw(&range).map_err(text)?;
        root.draw(&Text::new(format!("{rate:.2}"), (x(*max) + 8, y + 4), font(13))).map_err(text)?;
    }
    Ok(())
}
