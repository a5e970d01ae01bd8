use super::{Double, Math, Single};
use crate::isa::Isa;
use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, Vector, dispatch};

/// `(x, y, x^y)` at the ends of the range, where a power shows most of its logarithm's error: the powers of 400 bits,
/// rounded. The first 26 are where logarithms of 57 bits are furthest off, the next 12 where the present ones are; then come
/// edges of the table, both sides of 1, and large numbers.
const POWERS: &[(f64, f64, f64)] = &[
    (0.7390512737125242, -1906.2199892910503, 2.163516067746837e+250),
    (0.7390512737125242, -2346.7544682483494, 1.543618895810721e+308),
    (0.7577402441919722, -2555.139975091817, 6.956018473931853e+307),
    (0.7577402441919722, 2552.279896520343, 3.1784876495249403e-308),
    (0.8155766554413334, 3465.203809636831, 1.6122791249450828e-307),
    (0.8155766554413334, -3481.117420728419, 1.5902841396073164e+308),
    (0.8805263748986639, -5570.3919583580655, 6.407113974827602e+307),
    (0.8805263748986639, 5564.3281342469245, 3.3760595970651534e-308),
    (0.937753756360633, 10992.81660428569, 1.5046461667867214e-307),
    (0.937753756360633, -11042.366646351195, 1.6053366938421495e+308),
    (1.0613959901287895, 11894.814392852071, 6.417653749665793e+307),
    (1.0613959901287895, -11882.807905810405, 3.1865511701759816e-308),
    (1.1212294012099122, -6173.709440288957, 1.5875796428604606e-307),
    (1.1212294012099122, 6202.484771361828, 1.6952725084709546e+308),
    (1.1814097687620693, 4251.495214722789, 6.465828589469146e+307),
    (1.1814097687620693, -4247.048785689606, 3.245635568898887e-308),
    (1.242827928281809, -3249.4840108257367, 1.6328720811458854e-307),
    (1.242827928281809, 3264.8367549699233, 1.7239149056800674e+308),
    (1.2896224975607924, 2786.8066958588893, 6.885185192031824e+307),
    (1.2896224975607924, -2783.5507739730306, 3.324619696917375e-308),
    (1.368560466770804, -2251.2627551041796, 1.7137731466518001e-307),
    (1.368560466770804, 2261.655933420755, 1.5214672827304005e+308),
    (1.430613025094399, 1979.4917087857555, 7.159052012871806e+307),
    (1.430613025094399, -1977.111654855052, 3.27563607708403e-308),
    (1.4912255299450117, -1767.951194838678, 1.527080533161725e-307),
    (1.4912255299450117, 1775.8478498088086, 1.5365611923811946e+308),
    (0.7768810032039682, -2807.427103144532, 6.633504420056611e+307),
    (0.7768810032039682, 2804.0640999984444, 3.523669214364796e-308),
    (0.8955177131527915, 6401.850727272384, 1.5348209965093292e-307),
    (0.8955177131527915, -6431.073631064529, 1.6386035067445487e+308),
    (1.118325714229001, 6338.32288722816, 6.944436165890029e+307),
    (1.118325714229001, -6330.871176877199, 3.313446749147264e-308),
    (1.2066291521386814, -3760.910907988613, 1.6149326772017564e-307),
    (1.2066291521386814, 3777.9677635401913, 1.52488935948884e+308),
    (1.3607960160755084, 2300.618805599315, 6.408537270459702e+307),
    (1.3607960160755084, -2298.249337655005, 3.237869786924117e-308),
    (1.4883247139228397, -1776.421288267697, 1.6449059808090146e-307),
    (1.4883247139228397, 1784.6515242077949, 1.603990098305024e+308),
    (0.75, -2463.784191093211, 6.638716313097125e+307),
    (0.75, 2460.941214714385, 3.412823010518785e-308),
    (1.4999999999999998, -1742.2644389482768, 1.5939009800192447e-307),
    (1.4999999999999998, 1750.214675534235, 1.5758171857506984e+308),
    (1.5, 1748.2468955455186, 7.095728284795215e+307),
    (1.5, -1746.0267963401006, 3.4669141500730057e-308),
    (1.0000000000000002, -3.1815968915912463e+18, 1.5483637452032897e-307),
    (1.0000000000000002, 3.196155377757988e+18, 1.6369741237059179e+308),
    (0.9999999999999999, -6.384445143866766e+18, 6.8358188708906e+307),
    (0.9999999999999999, 6.376453283910857e+18, 3.552613457025775e-308),
    (1.0000000009313226, -758479565275.3983, 1.6561280081734369e-307),
    (1.0000000009313226, 761980180037.706, 1.5732351527356475e+308),
    (0.9999999995343387, -1522305788274.4314, 7.280864897628514e+307),
    (0.9999999995343387, 1520490314920.5833, 3.1986571862683133e-308),
    (1.0625, -11652.564230317501, 1.5861725205765996e-307),
    (1.0625, 11706.702109702384, 1.6789682640190654e+308),
    (3.999999977681472, 511.2652005112337, 6.491139568765354e+307),
    (3.999999977681472, -510.7011057454497, 3.3674250732110967e-308),
    (1e+300, -1.0227415418947634, 1.505003228503796e-307),
    (1e+300, 1.0273989622142659, 1.658397614112893e+308),
];

struct Power<'a> {
    x: &'a [f64],
    y: &'a [f64],
    power: &'a mut [f64],
}

impl Kernel for Power<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..self.x.len()).step_by(L::F64::LANES) {
            // SAFETY: the three have as many elements, a multiple of the lanes.
            unsafe {
                let (x, y) = (L::F64::load(self.x.as_ptr().add(at)), L::F64::load(self.y.as_ptr().add(at)));
                Double::pow(x, y).store(self.power.as_mut_ptr().add(at));
            }
        }
    }
}

/// Alone among usual powers, and beside those that take the longer way, the same.
#[test]
fn powers_are_right_to_the_ends_of_the_range() {
    const LANES: usize = 8;
    for isa in Isa::available() {
        for others in [(2.0, 3.0), (-2.0, f64::INFINITY)] {
            for &(x, y, want) in POWERS {
                let (mut xs, mut ys) = ([others.0; LANES], [others.1; LANES]);
                (xs[3], ys[3]) = (x, y);
                let unusual = others.0 < 0.0;
                if unusual {
                    (xs[5], ys[5]) = (1.0, f64::MAX);
                }
                let mut power = [f64::NAN; LANES];
                dispatch(isa, Power { x: &xs, y: &ys, power: &mut power });
                let off = power[3].to_bits().abs_diff(want.to_bits());
                assert!(off <= 6, "{x:e}^{y:e} = {want:e}, not {:e}: {off} ulps at {isa}", power[3]);
                assert!(!unusual || power[5] == 1.0, "1 to the largest power is {} at {isa}", power[5]);
                assert_eq!(power[0], if others.0 > 0.0 { 8.0 } else { f64::INFINITY }, "{isa}");
            }
        }
    }
}

/// How far a result is from the true value; not at all where both are NaN, or infinite.
fn ulps(got: f32, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if want.abs() > f32::MAX.into() && got == want as f32 {
        return 0.0;
    }
    let exponent = (want.abs().to_bits() >> 52) as i32 - 1023;
    (f64::from(got) - want).abs() / 2f64.powi(exponent.clamp(-126, 127) - 23)
}

struct PowerOfSingles<'a>(&'a [f32], &'a [f32], &'a mut [f32]);

impl Kernel for PowerOfSingles<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..self.0.len()).step_by(L::F32::LANES) {
            // SAFETY: the three have as many elements, a multiple of the lanes.
            unsafe {
                let (x, y) = (L::F32::load(self.0.as_ptr().add(at)), L::F32::load(self.1.as_ptr().add(at)));
                Single::pow(x, y).store(self.2.as_mut_ptr().add(at));
            }
        }
    }
}

/// To where the results end, where one way ends and another begins, and from both sides of each entry of a table; the same beside
/// usual numbers as beside those that take the longer way.
#[test]
fn powers_of_singles_are_right_to_the_ends_of_the_range() {
    let borders = (0..=16).flat_map(|k| [0.75 + k as f32 / 64.0, 1.0 + k as f32 / 32.0]);
    let bases = borders.flat_map(|b| [b, b.next_up(), b.next_down(), b + 0.007]);
    let others = [1e-40, f32::MIN_POSITIVE, 3.1e-5, 0.3, 2.0, 7.7, 1e9, f32::MAX];
    let exponents = [
        -1001.0, -999.0, -151.0, -149.3, -126.4, -126.0, -125.9, -31.3, -0.01, 0.6, 17.0, 125.9, 126.0,
        127.9, 128.1, 999.0, 1001.0,
    ];
    let mut points: Vec<(f32, f32)> = Vec::new();
    for x in bases.chain(others) {
        let log2 = f64::from(x).log2();
        points.extend(exponents.iter().map(|e| (x, if log2 == 0.0 { 1e30 } else { (e / log2) as f32 })));
        points.extend([0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|y| (x, y)));
    }
    for x in [0.0, -0.0, -1.0, -1.5, -2.0, -3e-39, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        points.extend(
            [
                -3.0,
                -2.5,
                -0.0,
                0.0,
                0.5,
                2.0,
                3.0,
                999.0,
                1001.0,
                -1001.0,
                16_777_215.0,
                16_777_216.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
            ]
            .map(|y| (x, y)),
        );
    }
    for isa in Isa::available() {
        for &(x, y) in &points {
            let want = libm::pow(x.into(), y.into());
            let results = [(2.0, 3.0), (-2.0, f32::INFINITY)].map(|other| {
                let (mut xs, mut ys, mut power) = ([other.0; 16], [other.1; 16], [0.0; 16]);
                (xs[5], ys[5]) = (x, y);
                dispatch(isa, PowerOfSingles(&xs, &ys, &mut power));
                power[5]
            });
            let [got, beside] = results;
            assert!(
                got.to_bits() == beside.to_bits() || got.is_nan() && beside.is_nan(),
                "{x:e}^{y:e} at {isa}: {got:e}, {beside:e}"
            );
            let off = ulps(got, want);
            assert!(off <= 4.0, "{x:e}^{y:e} at {isa}: {got:e}, not {want:e}: {off} ulps");
            assert!(
                want.is_nan() || got.is_sign_negative() == want.is_sign_negative(),
                "{x:e}^{y:e} at {isa}"
            );
        }
    }
}

/// The functions that many elements have in step, some with several ways for parts of the arguments: one after the other for
/// each of `x`.
const WAYS: usize = 17;
const ERFC: usize = 15;
const SLOPE: usize = 16;

struct Ways<'a> {
    x: &'a [f32],
    y: &'a mut [[f32; MAX_LANES]; WAYS],
}

impl Ways<'_> {
    #[inline(always)]
    fn on<V: crate::kernels::simd::Single>(self) {
        for at in (0..self.x.len()).step_by(V::LANES) {
            // SAFETY: both have `MAX_LANES` elements, a multiple of the lanes.
            unsafe {
                let x = V::load(self.x.as_ptr().add(at));
                let (high, low) = crate::kernels::unary::quick_gelu_argument(x);
                let y = [
                    Single::exp_alone(x),
                    Single::sigmoid(x),
                    Single::tanh(x),
                    Single::gelu(x),
                    Single::fast_gelu(x),
                    Single::silu(x),
                    Single::gated(x, high, low),
                    Single::erf(x),
                    Single::exp2(x),
                    Single::exp_m1(x),
                    Single::ln(x),
                    Single::log2(x),
                    Single::ln_1p(x),
                    Single::sin(x),
                    Single::cos(x),
                    Single::erfc(x),
                    Single::times_gelu_slope(V::splat(1.0), x),
                ];
                for (y, out) in y.into_iter().zip(&mut *self.y) {
                    y.store(out.as_mut_ptr().add(at));
                }
            }
        }
    }
}

/// [`Ways`] by several vectors in step, or by one.
struct InStep<'a, const MANY: bool>(Ways<'a>);

impl<const MANY: bool> Kernel for InStep<'_, MANY> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        if MANY { self.0.on::<L::ManyF32>() } else { self.0.on::<L::F32>() }
    }
}

/// `x` times the density of the normal distribution.
fn density(x: f64) -> f64 {
    let (tau, t) = (std::f64::consts::TAU, x.clamp(-1e3, 1e3));
    t * (-0.5 * t * t).exp() / tau.sqrt()
}

/// [`Ways`] in f64.
fn ways(x: f64) -> [f64; WAYS] {
    let gate = |y: f64| 1.0 / (1.0 + (-y).exp());
    let cdf = libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) / 2.0;
    let fast = 2.0 * 0.7978845608028654 * (x + 0.044714998453855515 * x.powi(3));
    // A product with a zero that stands for less than any number is one.
    let times = |y: f64| if x == f64::INFINITY { x } else { x * y };
    let gated = [times(cdf), times(gate(fast)), times(gate(x)), times(gate(1.702 * x))];
    let slope = cdf + density(x);
    let rest = [
        libm::erf(x),
        x.exp2(),
        x.exp_m1(),
        x.ln(),
        x.log2(),
        x.ln_1p(),
        x.sin(),
        x.cos(),
        libm::erfc(x),
        slope,
    ];
    let all = [x.exp(), gate(x), x.tanh()].into_iter().chain(gated).chain(rest);
    let mut ways = [f64::NAN; WAYS];
    ways.iter_mut().zip(all).for_each(|(way, y)| *way = y);
    ways
}

/// Where one way ends and the next begins, about pieces' ends, and all over: within 2 ulps, and the same by one vector as by
/// several, and beside whatever else.
#[test]
fn every_way_of_a_function_is_right_to_its_end() {
    let ends = [
        0.0, 1.0, 4.0, 6.04, 6.95, 9.3, 10.0, 13.0, 14.5, 15.98, 15.99, 16.6, 17.3, 18.0, 20.0, 85.3, 87.0,
        88.72, 90.0, 103.9, 112.0, 512.0, 2e5, 1e6, 1e9, 1e10, 3e38,
    ];
    let pieces = (0..8).map(|k| 2.0 * ((1.0 + k as f32).sqrt() - 1.0));
    let widening = (0..20).flat_map(|k| {
        let below = |first: f32| first * (1.0 + (k % 4) as f32 / 4.0) * (1u32 << (k / 4)) as f32;
        [below(0.5) - 0.625, below(0.25) - 0.3125]
    });
    // Where a piece of the logistic function was chosen by an argument that lacked its lower part.
    let lacking = [41.289_528, 51.788_24, 82.754_8, 86.915_76];
    let by_powers = (0..16).map(|k| 15.99 + k as f32 * std::f32::consts::LN_2);
    let growing = |scale: f32, growth: f32| {
        (0..32).map(move |k| ((scale * scale + 4.0 * growth * k as f32).sqrt() - scale) / (2.0 * growth))
    };
    let of_erfc = growing(1.4, 0.46).map(|end| end * std::f32::consts::FRAC_1_SQRT_2);
    let parts = (0..32).map(|k| k as f32 / 2.0).chain(growing(1.4, 0.46)).chain(growing(1.3, 0.66));
    let entries = (0..=16).flat_map(|k| [0.75 + k as f32 / 64.0, 1.0 + k as f32 / 32.0]);
    // Of NaNs those that additions to the exponent would make numbers of, too.
    let nans = [0x7f80_0001, 0x7fc0_0001, 0x7fff_ffff].map(f32::from_bits);
    let mut all = vec![f32::INFINITY, 1e-40, 1e-10, f32::MIN_POSITIVE, nans[0], nans[1], nans[2]];
    for end in ends
        .into_iter()
        .chain(pieces)
        .chain(widening)
        .chain(lacking)
        .chain(by_powers)
        .chain(parts)
        .chain(of_erfc)
        .chain(entries)
    {
        all.extend([end, end.next_up(), end.next_down().abs(), end * 0.999, end * 1.001]);
    }
    all.extend((0..4000).map(|k| k as f32 * (0.0271 + 1e-6 * k as f32 / 7.0)));
    all.extend(all.clone().into_iter().map(|x| -x));
    all.resize(all.len().next_multiple_of(MAX_LANES), 0.5);
    for isa in Isa::available() {
        for chunk in all.chunks(MAX_LANES) {
            let (mut y, mut one) = ([[0.0f32; MAX_LANES]; WAYS], [[0.0f32; MAX_LANES]; WAYS]);
            dispatch(isa, InStep::<true>(Ways { x: chunk, y: &mut y }));
            dispatch(isa, InStep::<false>(Ways { x: chunk, y: &mut one }));
            for (i, &x) in chunk.iter().enumerate() {
                // Alone among numbers that are not far.
                let (mut near, mut alone) = ([0.25; MAX_LANES], [[0.0f32; MAX_LANES]; WAYS]);
                near[i] = x;
                dispatch(isa, InStep::<true>(Ways { x: &near, y: &mut alone }));
                for (way, want) in ways(x.into()).into_iter().enumerate() {
                    let got = y[way][i];
                    for other in [one[way][i], alone[way][i]] {
                        assert!(
                            other.to_bits() == got.to_bits() || other.is_nan() && got.is_nan(),
                            "{way} of {x:e} at {isa}: {got:e} or {other:e}"
                        );
                    }
                    // What is gated is 0 at -inf, or NaN, as its formula is.
                    if x == f32::NEG_INFINITY && (3..7).contains(&way) {
                        continue;
                    }
                    let off = ulps(got, want);
                    let limit = if way == ERFC { 4.0 } else { 2.0 };
                    // The terms of a slope may cancel, and of one that is less than normal there are few digits.
                    let terms = want.abs() + 2.0 * density(x.into()).abs();
                    let slack = if way == SLOPE {
                        3.0 * f64::from(f32::EPSILON) * terms + 2f64.powi(-145)
                    } else {
                        0.0
                    };
                    let near = off <= limit || (f64::from(got) - want).abs() <= slack;
                    assert!(near, "{way} of {x:e} at {isa}: {got:e}, not {want:e}: {off} ulps");
                    if want.is_nan() {
                        continue;
                    }
                    assert!(
                        want != 0.0 || got.is_sign_negative() == want.is_sign_negative(),
                        "{way} of {x:e} at {isa}"
                    );
                }
            }
        }
    }
}

struct ErrorFunctions<'a> {
    x: &'a [f64],
    erf: &'a mut [f64],
    erfc: &'a mut [f64],
}

impl Kernel for ErrorFunctions<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..self.x.len()).step_by(L::F64::LANES) {
            // SAFETY: the three have as many elements, a multiple of the lanes.
            unsafe {
                let x = L::F64::load(self.x.as_ptr().add(at));
                Double::erf(x).store(self.erf.as_mut_ptr().add(at));
                Double::erfc(x).store(self.erfc.as_mut_ptr().add(at));
            }
        }
    }
}

/// About the ends of pieces, where results end, and all over: erf within 4 ulps, erfc within 16.
#[test]
fn error_functions_of_doubles_are_right_to_their_ends() {
    let widening = (0..20).flat_map(|k| {
        let below = |first: f64| first * (1.0 + f64::from(k % 4) / 4.0) * f64::from(1 << (k / 4));
        [below(0.25) - 0.4375, below(2.0) - 2.0]
    });
    let ends = [0.0, 1e-300, 1e-20, 1.0, 5.9, 6.0, 26.5, 27.2, 28.0, 1e300, f64::INFINITY];
    let mut all = vec![f64::NAN];
    for end in widening.chain(ends) {
        all.extend([end, end.next_up(), end.next_down().abs(), end * 0.999, end * 1.001]);
    }
    all.extend((0..3000).map(|k| f64::from(k) * (0.0021 + 1e-7 * f64::from(k) / 7.0)));
    all.extend(all.clone().into_iter().map(|x| -x));
    all.resize(all.len().next_multiple_of(MAX_LANES), 0.5);
    let off = |got: f64, want: f64| got.to_bits().abs_diff(want.to_bits());
    for isa in Isa::available() {
        let (mut erf, mut erfc) = (vec![0.0; all.len()], vec![0.0; all.len()]);
        dispatch(isa, ErrorFunctions { x: &all, erf: &mut erf, erfc: &mut erfc });
        for ((&x, &erf), &erfc) in all.iter().zip(&erf).zip(&erfc) {
            if x.is_nan() {
                assert!(erf.is_nan() && erfc.is_nan(), "{isa}");
                continue;
            }
            let want = [libm::erf(x), libm::erfc(x)];
            assert!(off(erf, want[0]) <= 4, "erf of {x:e} at {isa}: {erf:e}, not {:e}", want[0]);
            // Of what is less than normal there are few digits.
            let near = off(erfc, want[1]) <= 16 || (erfc - want[1]).abs() <= 2f64.powi(-1070);
            assert!(near, "erfc of {x:e} at {isa}: {erfc:e}, not {:e}", want[1]);
        }
    }
}
