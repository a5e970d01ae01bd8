//! What is there, and why a request gets the kernel that it gets, or none. Runs nothing on a device.

use ep_core::Result;
use ep_registry::Runtime;
use ep_registry::query::Filter;

fn main() -> Result<()> {
    let runtime = Runtime::from_config(std::env::args().nth(1).as_deref().unwrap_or("ep.toml"))?;
    print!("{}", runtime.report());

    let filter = Filter { op: Some("softmax".into()), dtype: Some("f16".into()), ..Filter::default() };
    for row in runtime.query(&filter) {
        let dtypes: Vec<String> = row.dtypes.iter().map(|(role, dtype)| format!("{role} {dtype}")).collect();
        let when = if row.predicate.is_empty() { "always" } else { &row.predicate };
        println!("{} {}/{}: {} when {when}", row.device, row.instance, row.factory, dtypes.join(", "));
    }

    let device = runtime.device("cpu")?;
    for (src, dst) in [("f16", "f32"), ("f32", "i32")] {
        let request =
            runtime.request("softmax")?.dtype("src", src)?.dtype("dst", dst)?.limit("cols", 1024)?;
        print!("\n{}", runtime.explain(device, &request)?);
        match runtime.primitive_dyn(device, &request) {
            Ok(primitive) => println!("made: {primitive:?} {}", primitive.describe()),
            Err(error) => println!("refused with {}", error.code()),
        }
    }
    Ok(())
}
