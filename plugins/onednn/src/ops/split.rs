//! How work is split over the host's threads.

use std::ops::Range;

/// Part `index` of `0..len` in `parts` parts whose bounds are multiples of `unit`. None is empty where there are as many units.
pub(super) fn part(len: u64, parts: u64, unit: u64, index: u64) -> Range<u64> {
    let units = len.div_ceil(unit);
    let bound = |i: u64| (u128::from(units) * u128::from(i) / u128::from(parts)) as u64 * unit;
    bound(index).min(len)..bound(index + 1).min(len)
}

/// How many parts of rows and of columns a matrix of `m` by `n` is split into, `parts` in all at most: those that read the
/// least, where each part reads its rows and its columns once.
pub(super) fn grid(m: u64, n: u64, units: [u64; 2], parts: u64) -> [u64; 2] {
    let most = [m.div_ceil(units[0]).max(1), n.div_ceil(units[1]).max(1)];
    let cost = |rows: u64| {
        let rows = rows.min(most[0]);
        let cols = (parts / rows).clamp(1, most[1]);
        let longest = m.div_ceil(rows).max(1) as f64 * n.div_ceil(cols).max(1) as f64;
        let reads = m.div_ceil(rows) + n.div_ceil(cols);
        ([rows, cols], longest, reads)
    };
    // Of equals the one with more parts of rows: rows of the result then stay whole.
    let best = (1..=parts).rev().map(cost).min_by(|x, y| x.1.total_cmp(&y.1).then(x.2.cmp(&y.2)));
    best.map_or([1, 1], |(grid, ..)| grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for (len, parts, unit) in [(100, 3, 16), (5, 4, 1), (1, 8, 64), (64, 2, 64), (1 << 40, 7, 32)] {
            let mut at = 0;
            for i in 0..parts {
                let part = part(len, parts, unit, i);
                assert_eq!(part.start.min(len), at);
                assert!(part.end == len || part.end.is_multiple_of(unit));
                at = part.end;
            }
            assert_eq!(at, len);
        }
    }

    #[test]
    fn a_matrix_is_split_where_least_is_read() {
        assert_eq!(grid(1024, 1024, [16, 64], 1), [1, 1]);
        assert_eq!(grid(1024, 1024, [16, 64], 2), [2, 1]);
        assert_eq!(grid(1024, 1024, [16, 64], 4), [2, 2]);
        assert_eq!(grid(4096, 64, [16, 64], 4), [4, 1]);
        assert_eq!(grid(16, 4096, [16, 64], 4), [1, 4]);
        assert_eq!(grid(1, 1, [16, 64], 8), [1, 1]);
    }
}
