//! The demo's network and digits.

use super::safetensors::{Problem, Tensors};
use crate::failure::Failure;
use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

/// Layers of the network.
const LAYERS: usize = 3;
/// Pixels of an image along one side.
pub const SIDE: usize = 8;
/// Digits.
pub const CLASSES: usize = 10;
/// The largest file that is read.
const MAX_FILE: u64 = 1 << 30;

const MODEL: &str = "mlp.safetensors";
const TEST: &str = "test.safetensors";

/// One layer: `y = x @ weight + bias`.
pub struct Layer {
    /// Columns of x.
    pub inputs: usize,
    /// Columns of y.
    pub outputs: usize,
    /// \[inputs, outputs\], row-major.
    pub weight: Vec<f32>,
    /// \[outputs\].
    pub bias: Vec<f32>,
}

/// Everything that the demo computes with.
pub struct Data {
    /// The network.
    pub layers: Vec<Layer>,
    /// How many images there are; at least 1.
    pub count: usize,
    /// \[count, SIDE * SIDE\], 0 to 16.
    pub images: Vec<u8>,
    /// \[count\], below [`CLASSES`].
    pub labels: Vec<usize>,
    /// \[count, CLASSES\]: what the network gives, computed elsewhere.
    pub probabilities: Vec<f32>,
}

impl Data {
    /// The data that this program carries.
    pub fn embedded() -> Result<Data, Failure> {
        let model = include_bytes!("../../../data/digits/mlp.safetensors");
        let test = include_bytes!("../../../data/digits/test.safetensors");
        Data::read((MODEL, Cow::Borrowed(model)), (TEST, Cow::Borrowed(test)))
    }

    /// The data in a folder.
    pub fn in_folder(dir: &Path) -> Result<Data, Failure> {
        let [model, test] = [MODEL, TEST].map(|name| dir.join(name));
        let bytes = [read_file(&model)?, read_file(&test)?];
        let [a, b] = bytes.map(Cow::Owned);
        Data::read((&model.display().to_string(), a), (&test.display().to_string(), b))
    }

    fn read(model: (&str, Cow<'_, [u8]>), test: (&str, Cow<'_, [u8]>)) -> Result<Data, Failure> {
        let wrong = |name: &str| {
            let name = name.to_owned();
            move |p: Problem| Failure::general(format!("{name} {p}"))
        };
        let layers = Tensors::parse(&model.1).and_then(|t| read_layers(&t)).map_err(wrong(model.0))?;
        let mut data = Tensors::parse(&test.1).and_then(|t| read_test(&t)).map_err(wrong(test.0))?;
        data.layers = layers;
        Ok(data)
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |e| Failure::general(format!("cannot read {}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Failure::general(format!("{} has more than {MAX_FILE} bytes", path.display())));
    }
    Ok(bytes)
}

fn read_layers(tensors: &Tensors<'_>) -> Result<Vec<Layer>, Problem> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut inputs = SIDE * SIDE;
    for i in 0..LAYERS {
        let ([rows, outputs], weight) = tensors.get::<f32, 2>(&format!("layer{i}.weight"))?;
        let ([biases], bias) = tensors.get::<f32, 1>(&format!("layer{i}.bias"))?;
        let last_fits = i + 1 < LAYERS || outputs == CLASSES;
        if rows != inputs || biases != outputs || outputs == 0 || !last_fits {
            return Err(Problem::new(format!(
                "has layer {i} with a weight of [{rows}, {outputs}] and a bias of [{biases}]; its input has \
                 {inputs} columns, and the last layer's output {CLASSES}"
            )));
        }
        layers.push(Layer { inputs, outputs, weight, bias });
        inputs = outputs;
    }
    Ok(layers)
}

fn read_test(tensors: &Tensors<'_>) -> Result<Data, Problem> {
    let ([count, pixels], images) = tensors.get::<u8, 2>("images")?;
    let ([labelled], labels) = tensors.get::<i64, 1>("labels")?;
    let ([rows, classes], probabilities) = tensors.get::<f32, 2>("probabilities")?;
    if count == 0 || pixels != SIDE * SIDE || labelled != count || (rows, classes) != (count, CLASSES) {
        return Err(Problem::new(format!(
            "has images of [{count}, {pixels}], labels of [{labelled}] and probabilities of [{rows}, {classes}]; \
             they must be [n, {}], [n] and [n, {CLASSES}] with n above 0",
            SIDE * SIDE
        )));
    }
    let label = |l: &i64| match usize::try_from(*l) {
        Ok(l) if l < CLASSES => Ok(l),
        _ => Err(Problem::new(format!("has the label {l}; labels are 0 to {}", CLASSES - 1))),
    };
    let labels = labels.iter().map(label).collect::<Result<_, _>>()?;
    Ok(Data { layers: Vec::new(), count, images, labels, probabilities })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_data_is_whole() {
        let data = Data::embedded().unwrap();
        assert_eq!((data.count, data.labels.len(), data.layers.len()), (540, 540, LAYERS));
        assert!(data.images.iter().all(|p| *p <= 16));
        for row in data.probabilities.chunks(CLASSES) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn files_in_each_others_place_are_refused() {
        let model = include_bytes!("../../../data/digits/mlp.safetensors");
        let test = include_bytes!("../../../data/digits/test.safetensors");
        let swapped = Data::read(("a", Cow::Borrowed(test)), ("b", Cow::Borrowed(model)));
        let failure = swapped.err().unwrap();
        assert!(failure.message.starts_with("a has no tensor `layer0.weight`"), "{}", failure.message);
    }
}
