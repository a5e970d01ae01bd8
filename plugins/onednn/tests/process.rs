//! What concerns the whole process, in one test, beside which no other runs.

use ep_core::DType;
use ep_core::Scalar;
use ep_core::primitive::{Matmul, MatmulCall, MatmulDesc, Transpose};
use ep_onednn::{Library, OnednnProvider};
use ep_registry::{Primitive, Runtime};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// No thread beside the host's is started, and products of f32 keep all bits of their factors although the library is
/// told to shorten them.
#[test]
fn no_threads_are_started_and_no_numbers_shortened() {
    // SAFETY: no other thread of this program reads variables now; the library does so at its first product.
    unsafe { std::env::set_var("ONEDNN_DEFAULT_FPMATH_MODE", "BF16") };
    if let Err(e) = Library::open(None) {
        assert!(std::env::var_os("EP_TEST_ONEDNN").is_none(), "{e}");
        println!("skipped: {e}");
        return;
    }
    let runtime = Runtime::builder().threads(2).linked::<OnednnProvider>("onednn").build().unwrap();
    let device = &runtime.devices()[0];
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul: Primitive<Matmul> = runtime.primitive(device, desc).unwrap();
    let before = threads();
    let size = 512;
    let count = (size * size) as usize;
    let a = device.upload(&vec![1.0 + 0.5f32.powi(12); count]).unwrap();
    let b = device.upload(&vec![1f32; count]).unwrap();
    let mut c = device.upload(&vec![f32::NAN; count]).unwrap();
    let (alpha, beta) = (Scalar::None, Scalar::None);
    let call = MatmulCall { m: size, n: size, k: size, alpha, beta, a: &a, b: &b, c: &mut c };
    matmul.launch(&device.stream().unwrap(), call).unwrap();
    assert!(c.download::<f32>().unwrap().iter().all(|x| *x == 512.125));
    assert_eq!(threads(), before);
}
