//! Small lines of the last hour, as SVG.

use maud::{Markup, html};

use super::history::MAX_STEPS;

/// Size of a chart in its own units: one for each step across.
const HEIGHT: f64 = 60.0;

/// One line of a chart: its label, and its values, oldest first. Where there is none, the line has a gap.
pub(super) struct ChartLine {
    pub(super) name: &'static str,
    pub(super) values: Vec<Option<f64>>,
}

/// A chart of the last hour with the newest step at its right end. `unit` writes a value for people.
pub(super) fn chart(title: &str, lines: &[ChartLine], unit: impl Fn(f64) -> String) -> Markup {
    let highest =
        lines.iter().flat_map(|line| line.values.iter().flatten()).fold(0.0, |most: f64, value| most.max(*value));
    let newest = |line: &ChartLine| line.values.last().copied().flatten().map_or_else(|| "–".to_owned(), &unit);
    let newest_values: Vec<String> = lines.iter().map(|line| format!("{} {}", line.name, newest(line))).collect();
    html! {
        figure {
            figcaption {
                (title)
                @for (number, line) in lines.iter().enumerate() {
                    " " span.key.(format!("line-{number}")) { (line.name) " " b { (newest(line)) } }
                }
            }
            svg viewBox=(format!("0 0 {MAX_STEPS} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(format!("{title}: {}", newest_values.join(", "))) {
                @for (number, line) in lines.iter().enumerate() {
                    path.(format!("line-{number}")) d=(path(&line.values, highest)) vector-effect="non-scaling-stroke" {}
                }
            }
            div.axis aria-hidden="true" { span { "1 h ago" } span { "highest " (unit(highest)) } span { "now" } }
        }
    }
}

/// The commands that draw values, which end at the right edge.
fn path(values: &[Option<f64>], highest: f64) -> String {
    let mut path = String::new();
    let mut is_drawing = false;
    let first = MAX_STEPS.saturating_sub(values.len());
    for (step, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_drawing = false;
            continue;
        };
        let height = if highest > 0.0 { HEIGHT - 1.0 - value / highest * (HEIGHT - 2.0) } else { HEIGHT - 1.0 };
        let x = first + step;
        // A value without neighbours is a dash of its own.
        path += &if is_drawing { format!("L{x} {height:.1}") } else { format!("M{x} {height:.1}h0.5") };
        is_drawing = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_the_right_edge_and_has_gaps() {
        assert_eq!(path(&[Some(0.0), Some(10.0), None, Some(5.0)], 10.0), "M356 59.0h0.5L357 1.0M359 30.0h0.5");
        assert_eq!(path(&[Some(0.0)], 0.0), "M359 59.0h0.5");
        assert_eq!(path(&[], 0.0), "");
    }
}
