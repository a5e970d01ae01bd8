//! The accuracy program on few points, always the same: every float op at every instruction-set level of the machine.

use ep_accuracy::{DTYPES, Op, Plan, limit, measure};
use ep_cpu::isa::Isa;

const PLAN: Plan = Plan { random: 600, around_edge: 16, pattern_step: 173, seed: 20 };

#[test]
fn all_ops_are_within_their_limits() {
    let levels = Isa::available();
    let (mut wrong, mut points, mut pairs) = (Vec::new(), 0, 0);
    for op in Op::all() {
        for dtype in DTYPES {
            for &isa in &levels {
                let Some(worst) = measure(op, dtype, isa, &PLAN, &mut |_| {}) else { continue };
                (points, pairs) = (points + worst.points, pairs + 1);
                if worst.ulps > limit(op, dtype).ulps {
                    let (got, want, place) = (worst.got, worst.want, worst.place(op));
                    wrong.push(format!(
                        "{} {dtype} {isa} at {place}: {got:e} is not {want:e}, {} ulps off",
                        op.name(),
                        worst.ulps
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // The floor of ops, each in four dtypes at each level.
    assert!(pairs >= 120 * 4 * levels.len() as u64 && points > 300 * pairs, "{pairs} pairs, {points} points");
}

/// A judge that nothing can fail is none.
#[test]
fn what_is_wrong_is_seen() {
    let exp = Op::Unary("exp");
    for dtype in DTYPES {
        let worst = measure(exp, dtype, Isa::BASELINE, &PLAN, &mut |_| {}).unwrap();
        assert!(worst.ulps > 0.3 && worst.got != 0.0 && worst.points > 300, "{dtype}: {worst:?}");
    }
    assert!(limit(Op::Unary("tan"), DTYPES[3]).ulps > limit(exp, DTYPES[3]).ulps);
}
