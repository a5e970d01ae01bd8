//! Digits and their probabilities as text.

use super::data::{CLASSES, Data, SIDE};
use super::network::best;
use crate::failure::Failure;
use crate::output::{Out, Style};

/// From black to white.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
/// The length of a bar for the probability 1.
const BAR: usize = 12;
/// Columns that one digit takes.
const WIDTH: usize = 22;

/// Indices of up to three images worth a look: the first two that were classified as labelled, and the first
/// that was not.
pub fn pick(probabilities: &[f32], labels: &[usize]) -> Vec<usize> {
    let right = |i: &usize| best(&probabilities[i * CLASSES..][..CLASSES]) == labels[*i];
    let all = 0..labels.len();
    let wrong = all.clone().find(|i| !right(i));
    let hits: Vec<usize> = all.filter(right).take(if wrong.is_some() { 2 } else { 3 }).collect();
    hits.into_iter().chain(wrong).collect()
}

/// Draws images side by side, each above its probabilities.
pub fn digits(data: &Data, probabilities: &[f32], which: &[usize], out: &mut Out) -> Result<(), Failure> {
    let columns: Vec<Vec<(String, Style)>> = which
        .iter()
        .map(|i| {
            let pixels = &data.images[i * SIDE * SIDE..][..SIDE * SIDE];
            column(*i, pixels, data.labels[*i], &probabilities[i * CLASSES..][..CLASSES])
        })
        .collect();
    for row in 0..columns.iter().map(Vec::len).min().unwrap_or(0) {
        let mut line = String::from("  ");
        for (text, style) in columns.iter().map(|c| &c[row]) {
            let pad = " ".repeat(WIDTH.saturating_sub(text.chars().count()) + 3);
            line.push_str(&out.paint(*style, text));
            line.push_str(&pad);
        }
        out.line(line.trim_end())?;
    }
    Ok(())
}

/// The lines of one digit.
fn column(index: usize, pixels: &[u8], label: usize, probabilities: &[f32]) -> Vec<(String, Style)> {
    let guess = best(probabilities);
    let verdict = if guess == label { Style::Good } else { Style::Bad };
    let mut lines = vec![(format!("image {index}, labelled {label}"), Style::Bold)];
    for row in pixels.chunks(SIDE) {
        let shade = |p: &u8| SHADES[usize::from(*p).min(16) * (SHADES.len() - 1) / 16];
        // Characters are about twice as high as wide.
        lines.push((row.iter().flat_map(|p| [shade(p); 2]).collect(), Style::Plain));
    }
    for (digit, p) in probabilities.iter().enumerate() {
        let length = (f64::from(*p).clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let text = format!("{digit} {:<BAR$} {:5.1} %", "█".repeat(length), p * 100.0);
        lines.push((text, if digit == guess { verdict } else { Style::Dim }));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hits_and_a_miss_are_picked() {
        let mut p = [0.0; 4 * CLASSES];
        for (i, class) in [1, 2, 3, 4].into_iter().enumerate() {
            p[i * CLASSES + class] = 1.0;
        }
        assert_eq!(pick(&p, &[9, 2, 3, 4]), [1, 2, 0]);
        assert_eq!(pick(&p, &[1, 2, 3, 4]), [0, 1, 2]);
        assert_eq!(pick(&p[..CLASSES], &[5]), [0]);
    }

    #[test]
    fn shades_and_bars_cover_their_ranges() {
        let pixels: Vec<u8> = (0..64).map(|i| if i == 63 { 255 } else { i % 17 }).collect();
        let mut p = [0.0; CLASSES];
        (p[0], p[1], p[2]) = (f32::NAN, 1.0, -0.1);
        let lines = column(7, &pixels, 1, &p);
        assert_eq!(lines.len(), 1 + SIDE + CLASSES);
        assert!(lines[1].0.starts_with("      ") && lines[SIDE].0.ends_with("██"));
        assert!(lines[1 + SIDE].0.contains("NaN"));
        assert_eq!(lines[2 + SIDE].0.chars().filter(|c| *c == '█').count(), BAR);
        assert!(lines.iter().all(|(text, _)| text.chars().count() <= WIDTH), "{lines:?}");
    }
}
