//! Products by a `b` that was packed before.

use super::*;
use crate::kernels::testing::{BetweenPages, between_pages};

impl Case {
    /// Bytes of a packed `b`, where the level has a form of it.
    fn packed_bytes(&self, isa: Isa) -> Option<usize> {
        (prepack(self.dtype)?.bytes)(isa, self.shape.n, self.shape.k)
    }

    /// Packs `b` and multiplies by it.
    ///
    /// # Safety
    /// The operands hold matrices of these sizes, and `packed` is writable for [`Self::packed_bytes`] and at a line.
    unsafe fn launch_packed(
        &self,
        isa: Isa,
        par: &dyn Parallel,
        [a, b, c]: [*mut u8; 3],
        packed: *mut u8,
    ) -> Result<()> {
        let MatmulShape { m, n, k, trans_a, trans_b } = self.shape;
        let prepack = prepack(self.dtype).unwrap();
        let (one, zero, nothing) = ((1.0, 0.0), (0.0, 0.0), std::ptr::null_mut());
        let of_b =
            MatmulArgs { m: 1, n, k, trans_a, trans_b, alpha: one, a: nothing, b, beta: zero, c: nothing };
        let args = MatmulArgs { m, alpha: self.alpha, a, b: packed, beta: self.beta, c, ..of_b };
        // SAFETY: the caller's promise.
        unsafe {
            (prepack.pack)(isa, par, &of_b, packed)?;
            (prepack.multiply)(isa, par, &args)
        }
    }

    /// The same as [`Self::run`] with a `b` that was packed before, where the level has a form of it.
    fn run_packed(&self, isa: Isa, par: &dyn Parallel) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.packed_bytes(isa) else { return Ok(None) };
        let [mut a, mut b, mut c] =
            [&self.a, &self.b, &self.c].map(|bytes| Buffer::of(bytes, self.dtype.size().unwrap()));
        let mut packed = Buffer::poisoned(bytes, 64);
        // SAFETY: the buffers hold matrices of these sizes, and what the form takes.
        unsafe { self.launch_packed(isa, par, [a.ptr(), b.ptr(), c.ptr()], packed.ptr())? };
        assert_eq!(b.into_bytes(), self.b, "{} at {isa}: packing changes b", self.name());
        packed.into_bytes();
        Ok(Some(c.into_bytes()))
    }

    /// [`Self::run_packed`] with all operands at inaccessible pages, before which they end or behind which they start.
    fn run_packed_between_pages(&self, isa: Isa, at_end: bool) -> Option<Vec<u8>> {
        // A line of a packed `b` is not cut in two.
        let bytes = self.packed_bytes(isa)?.next_multiple_of(64);
        let operands = [&self.a, &self.b, &self.c];
        let pages = operands.map(|bytes| between_pages(bytes.len(), at_end));
        let packed = between_pages(bytes, at_end);
        // SAFETY: the pages have room for these operands.
        unsafe {
            for (page, bytes) in pages.iter().zip(operands) {
                page.ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            self.launch_packed(isa, &Serial, pages.each_ref().map(BetweenPages::ptr), packed.ptr()).unwrap();
            Some(std::slice::from_raw_parts(pages[2].ptr(), self.c.len()).to_vec())
        }
    }

    /// Checks what was packed before against the reference, on all levels and thread counts; on how many it was packed.
    fn check_packed(&self) -> usize {
        let want = self.products();
        let check = |isa: Isa| {
            let Some(got) = self.run_packed(isa, &Serial).unwrap() else { return false };
            let threads = self.run_packed(isa, &Threads(3)).unwrap();
            assert!(Some(&got) == threads.as_ref(), "{} changes with threads", self.name());
            self.compare(isa, &got, &want);
            true
        };
        Isa::available().into_iter().filter(|isa| check(*isa)).count()
    }
}

/// Few and many rows, odd sizes, several blocks along the depth, more columns than are packed at a time; on tiles and by dot
/// products, as the CPU has them.
#[test]
fn a_b_that_was_packed_before() {
    let mut rng = Rng::new();
    let mut packed = 0;
    for sizes in [
        (1, 64, 64),
        (1, 300, 131),
        (2, 131, 70),
        (3, 33, 2100),
        (16, 129, 67),
        (33, 70, 67),
        (65, 31, 4200),
        (100, 260, 65),
        (2, 17, 1057),
        (5, 1057, 17),
        // Several columns of tiles, in several blocks along the depth of which the last one is shorter.
        (2, 300, 2100),
        (3, 300, 2100),
    ] {
        for trans in 0..4 {
            let mut case = Case::random(DType::BF16, 1, sizes, trans, &mut rng);
            packed += case.check_packed();
            (case.alpha, case.beta) = scalars(DType::BF16)[trans % 2];
            case.check_packed();
        }
    }
    let pairs = Isa::available()
        .into_iter()
        .filter(|isa| prepack(DType::BF16).is_some_and(|prepack| (prepack.bytes)(*isa, 64, 64).is_some()));
    assert_eq!(packed, 48 * pairs.count());
    // So much that threads cut the columns.
    Case::random(DType::BF16, 1, (34, 512, 500), 0, &mut rng).check_packed();
    // What is small, or has no unit for it, is read as it is.
    assert_eq!(Case::random(DType::BF16, 1, (9, 8, 7), 0, &mut rng).check_packed(), 0);
    assert_eq!(Case::random(DType::BF16, 1, (2, 7, 1057), 0, &mut rng).check_packed(), 0);
    assert_eq!(Case::random(DType::F32, 1, (9, 80, 70), 0, &mut rng).check_packed(), 0);
}

/// Sanitizers see neither what tiles read and write nor what assembly does.
#[test]
fn a_packed_b_between_pages() {
    let mut rng = Rng::new();
    for sizes in [(1, 64, 64), (2, 131, 70), (3, 33, 2100), (17, 129, 67), (33, 70, 67), (65, 300, 131)] {
        for trans in 0..4 {
            let case = Case::random(DType::BF16, 1, sizes, trans, &mut rng);
            for isa in Isa::available() {
                let want = case.run_packed(isa, &Serial).unwrap();
                for at_end in [false, true] {
                    assert!(case.run_packed_between_pages(isa, at_end) == want, "{} at {isa}", case.name());
                }
            }
        }
    }
}

/// Nothing is read of either factor with a zero in place of alpha, nor of the result with one in place of beta.
#[test]
fn zero_scalars_with_a_packed_b_read_nothing() {
    let mut rng = Rng::new();
    let nan = |bytes: &[u8]| encode(DType::BF16, &vec![f64::NAN; bytes.len() / 2]);
    for sizes in [(1, 64, 64), (5, 70, 66)] {
        let mut case = Case::random(DType::BF16, 1, sizes, 0, &mut rng);
        case.c = nan(&case.c);
        case.check_packed();
        let mut case = Case::random(DType::BF16, 1, sizes, 1, &mut rng);
        (case.a, case.b) = (nan(&case.a), nan(&case.b));
        (case.alpha, case.beta) = ((0.0, 0.0), (2.0, 0.0));
        case.check_packed();
    }
    let mut case = Case::random(DType::BF16, 1, (0, 64, 64), 0, &mut rng);
    case.c.clear();
    case.check_packed();
}
