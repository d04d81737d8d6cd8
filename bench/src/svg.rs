//! Charts as SVG, by hand: lines over a count, and one number of each. Readable on white and on black.
//!
//! All axes are in steps of ten, where a length says nothing: so there are no bars, only places.

use std::fmt::Write;

const WIDTH: f64 = 780.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 76.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 66.0;
/// Beside the chart, for names: the longest has room in a wide font.
const NAMES: f64 = 218.0;
/// From one name to the next.
const LINE: f64 = 15.0;
/// Each stands out from white and from black.
const COLOURS: [&str; 8] = [
    "#7f7f7f", "#17a2b8", "#2f7fe0", "#e07b00", "#b455c8", "#3f9d4f", "#d64550", "#a08400",
];
/// What the reader's page has in dark, where the file can know that.
const STYLE: &str = "<style>text{font-family:sans-serif;font-size:12px;fill:#333}\
    .title{font-size:15px;font-weight:bold}.grid{stroke:#999;stroke-opacity:.35}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}}</style>";

/// A line, or a row.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Its place among all that may be shown: its colour, which it has in every chart.
    pub(crate) place: usize,
    /// By place on the axis; infinite is what never happened.
    pub(crate) values: Vec<Option<f64>>,
}

/// Lines over counts.
pub(crate) fn lines(title: &str, unit: &str, counts: &[f64], series: &[Series]) -> String {
    let values = series.iter().flat_map(|one| one.values.iter().flatten());
    let Some(axis) = Axis::over(values.copied(), 1.0) else {
        return String::new();
    };
    let (right, foot) = (WIDTH - NAMES, HEIGHT - BOTTOM);
    let span = (counts[counts.len() - 1] / counts[0]).log10().max(1e-9);
    let x = |count: f64| LEFT + (right - LEFT) * (count / counts[0]).log10() / span;
    let y = |value: f64| foot - (foot - TOP) * axis.part(value);
    let mut svg = begin(title, HEIGHT);
    for value in axis.tens() {
        let at = y(value);
        grid(&mut svg, [LEFT, at, right, at]);
        text(&mut svg, [LEFT - 8.0, at + 4.0], "end", &digits(value));
    }
    text(&mut svg, [LEFT - 8.0, TOP - 16.0], "end", unit);
    for &count in counts {
        grid(&mut svg, [x(count), TOP, x(count), foot]);
        text(&mut svg, [x(count), foot + 18.0], "middle", &digits(count));
    }
    let middle = (LEFT + right) / 2.0;
    text(&mut svg, [middle, foot + 36.0], "middle", "clients");
    let is_short = |one: &Series| one.values.last().is_none_or(Option::is_none);
    if series.iter().any(is_short) {
        let why = "A line that ends early: no more clients in the time there was.";
        text(&mut svg, [LEFT, HEIGHT - 8.0], "start", why);
    }
    let mut ends: Vec<([f64; 2], &Series)> = Vec::new();
    for (above, one) in series.iter().enumerate() {
        let points = counts.iter().zip(&one.values);
        let points: Vec<[f64; 2]> = points
            .filter_map(|(&count, value)| Some([x(count), y((*value)?)]))
            .collect();
        // Every other one is thin: of two neighbours that are equal, both are seen.
        let width = if above % 2 == 0 { 5.0 } else { 2.0 };
        line(&mut svg, &points, width, colour(one.place));
        ends.extend(points.last().map(|&end| (end, one)));
    }
    ends.sort_by(|one, other| one.0[1].total_cmp(&other.0[1]));
    let heights: Vec<f64> = ends.iter().map(|(end, _)| end[1]).collect();
    for (([end, y], one), at) in ends.iter().zip(apart(&heights)) {
        let (from, colour) = (right + 10.0, colour(one.place));
        let _ = write!(
            svg,
            "<line x1='{:.1}' y1='{y:.1}' x2='{from}' y2='{at:.1}' stroke='{colour}' stroke-dasharray='1 3'/>\
             <text x='{}' y='{:.1}' style='fill:{colour}'>{}</text>",
            end + 5.0,
            from + 3.0,
            at + 4.0,
            escaped(&one.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A row with a dot for each. What never happened points out of the chart, and says so.
pub(crate) fn dots(title: &str, unit: &str, series: &[Series]) -> String {
    let shown: Vec<(&Series, f64)> = series
        .iter()
        .filter_map(|one| Some((one, (*one.values.first()?)?)))
        .collect();
    let happened = shown.iter().map(|(_, value)| *value);
    let happened = happened.filter(|value| value.is_finite());
    let Some(axis) = Axis::over(happened, 3.0) else {
        return String::new();
    };
    let (left, right, step) = (NAMES, WIDTH - 84.0, 28.0);
    let top = TOP - 20.0;
    let foot = top + step * shown.len() as f64;
    let x = |value: f64| left + (right - left) * axis.part(value);
    let mut svg = begin(title, foot + 48.0);
    for value in axis.tens() {
        grid(&mut svg, [x(value), top, x(value), foot]);
        text(&mut svg, [x(value), foot + 18.0], "middle", &digits(value));
    }
    let middle = (left + right) / 2.0;
    text(&mut svg, [middle, foot + 38.0], "middle", unit);
    for (row, (one, value)) in shown.iter().enumerate() {
        let y = top + step * (row as f64 + 0.5);
        let colour = colour(one.place);
        text(&mut svg, [left - 12.0, y + 4.0], "end", &one.name);
        grid(&mut svg, [left, y, right, y]);
        if value.is_finite() {
            let (x, words) = (x(*value), crate::summary::rounded(*value));
            dot(&mut svg, [x, y], 6.0, colour);
            text(&mut svg, [x + 11.0, y - 3.0], "start", &words);
        } else {
            let _ = write!(
                svg,
                "<path d='M{:.1} {:.1} l9 6 l-9 6 z' fill='{colour}'/>",
                right + 3.0,
                y - 6.0
            );
            text(&mut svg, [right + 17.0, y + 4.0], "start", "never");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// These heights, which ascend, moved as little as leaves each its line.
fn apart(heights: &[f64]) -> Vec<f64> {
    // Neighbours that touch, as the sum of where their first one would have to be, and how many they are.
    let mut heaps: Vec<(f64, usize)> = Vec::new();
    for &height in heights {
        let mut heap = (height, 1);
        while let Some(&(sum, count)) = heaps.last() {
            let (above, top) = (sum / count as f64, heap.0 / heap.1 as f64);
            if above + LINE * count as f64 <= top {
                break;
            }
            heaps.pop();
            heap = (
                sum + heap.0 - LINE * (count * heap.1) as f64,
                count + heap.1,
            );
        }
        heaps.push(heap);
    }
    let places = heaps.into_iter().flat_map(|(sum, count)| {
        (0..count).map(move |place| sum / count as f64 + LINE * place as f64)
    });
    places.collect()
}

fn line(svg: &mut String, points: &[[f64; 2]], width: f64, colour: &str) {
    let path: Vec<String> = points
        .iter()
        .map(|[x, y]| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = write!(
        svg,
        "<polyline fill='none' stroke='{colour}' stroke-width='{width:.1}' points='{}'/>",
        path.join(" ")
    );
    for &point in points {
        dot(svg, point, width / 2.0 + 2.0, colour);
    }
}

fn dot(svg: &mut String, [x, y]: [f64; 2], radius: f64, colour: &str) {
    let _ = write!(
        svg,
        "<circle cx='{x:.1}' cy='{y:.1}' r='{radius:.1}' fill='{colour}'/>"
    );
}

fn grid(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = write!(
        svg,
        "<line class='grid' x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}'/>"
    );
}

fn text(svg: &mut String, [x, y]: [f64; 2], anchor: &str, words: &str) {
    let _ = write!(
        svg,
        "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>",
        escaped(words)
    );
}

/// From a power of ten to another.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    /// Of at least so many steps.
    fn over(values: impl Iterator<Item = f64> + Clone, steps: f64) -> Option<Axis> {
        let least = values.clone().reduce(f64::min)?;
        let most = values.reduce(f64::max)?;
        // What is nothing has no place here; it is as low as there is room.
        let lowest = |value: f64| value.max(0.001).log10();
        let (from, to) = (lowest(least).floor(), lowest(most).ceil());
        Some(Axis {
            from: from.min(to - steps),
            to: to.max(from + 1.0),
        })
    }

    /// How far it is from the beginning: 1 at the end.
    fn part(&self, value: f64) -> f64 {
        ((value.log10() - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn tens(&self) -> impl Iterator<Item = f64> + use<> {
        (self.from as i32..=self.to as i32).map(|tens| 10f64.powi(tens))
    }
}

/// With a comma for each thousand.
fn digits(value: f64) -> String {
    match value {
        large if large >= 1000.0 => {
            let (thousands, rest) = ((large / 1000.0).floor(), large % 1000.0);
            format!("{},{rest:03.0}", digits(thousands))
        }
        // No more digits than a power of ten has.
        small => format!("{}", (small * 1e6).round() / 1e6),
    }
}

fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>{STYLE}\
         <text class='title' x='14' y='24'>{}</text>",
        escaped(title)
    )
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        Series {
            name: name.to_owned(),
            place: 0,
            values: values.iter().copied().map(Some).collect(),
        }
    }

    #[test]
    fn more_is_farther_and_names_do_not_overlap() {
        let pair = [series("a", &[10.0, 100.0]), series("b & c", &[10.0, 101.0])];
        let svg = lines("t", "MB", &[1.0, 10.0], &pair);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("b &amp; c") && !svg.contains("ends early"));
        let axis = Axis::over([10.0, 101.0].into_iter(), 1.0).unwrap();
        assert!(axis.part(100.0) > axis.part(10.0));
        // Two that touch move by the same; who has room stays.
        assert_eq!(apart(&[10.0, 20.0, 60.0]), [7.5, 22.5, 60.0]);
        assert_eq!(apart(&[10.0, 10.0, 10.0]), [-5.0, 10.0, 25.0]);
    }

    #[test]
    fn a_line_that_ends_early_says_why() {
        let mut short = series("a", &[10.0, 100.0]);
        short.values[1] = None;
        assert!(lines("t", "MB", &[1.0, 10.0], &[short]).contains("ends early"));
    }

    #[test]
    fn what_never_happened_has_no_place_on_the_axis() {
        let never = series("b", &[f64::INFINITY]);
        let svg = dots("t", "ms", &[series("a", &[12.0]), never]);
        assert!(svg.contains(">never<") && svg.contains(">12.0<"));
        assert_eq!(svg.matches("<circle").count(), 1);
        assert_eq!(dots("t", "ms", &[]), "");
        assert_eq!(lines("t", "ms", &[1.0], &[]), "");
    }

    #[test]
    fn a_place_on_an_axis_reads_well() {
        let axis = Axis::over([0.5, 30_000.0].into_iter(), 1.0).unwrap();
        let words: Vec<_> = axis.tens().map(digits).collect();
        assert_eq!(
            words,
            ["0.1", "1", "10", "100", "1,000", "10,000", "100,000"]
        );
        assert_eq!(digits(1_000_000.0), "1,000,000");
        assert_eq!(axis.part(0.0), 0.0);
    }
}
