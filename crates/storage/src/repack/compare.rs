//! Whether two files hold one model: each tensor of one against the other's, however each keeps its experts.

use forerun_model::{ExpertKey, LayerId, ModelShape};

use super::job::Progress;
use super::plan::{Batch, Copy, Destination, Plan, Step};
use super::verify::{Checked, Difference, STEP_BYTES};
use super::{hints, read, recipe};
use crate::expert_name::PARTS;
use crate::gguf::Value;
use crate::{Catalog, Gguf, PackError, TensorInfo, packed};

/// Where a model's experts lie now, in the order of the disk.
pub(super) fn places(shape: &ModelShape, catalog: &Catalog) -> Vec<Destination> {
    let n_experts = u16::try_from(catalog.n_experts()).expect("a header allows fewer experts than ids");
    let of = |layer: LayerId| {
        let record = |expert| {
            let record = catalog.record(ExpertKey::new(layer.0, expert));
            record.expect("the catalog has every expert of its shape").parts
        };
        let mut sequence: Vec<u16> = (0..n_experts).collect();
        sequence.sort_by_key(|&expert| (record(expert)[0].file, record(expert)[0].offset_bytes));
        // Ranges of one buffer only: the order of files doesn't matter, so their offsets stand alone.
        let to_bytes = (0..n_experts).map(|expert| record(expert).map(|part| part.offset_bytes)).collect();
        let layout = *catalog.layout(layer).expect("the catalog has every layer of its shape");
        Destination { layout, to_bytes, pads_bytes: [0; 3], sequence }
    };
    shape.layer_ids().map(of).collect()
}

/// A file of a comparison.
struct Side<'a> {
    gguf: &'a Gguf,
    /// Where experts lie; `None` when either file's can't be known, so that tensors are compared by name alone.
    model: Option<(Catalog, Vec<Destination>)>,
    buffer: Vec<u8>,
}

impl Side<'_> {
    /// Whether `tensor` is compared expert by expert.
    fn is_expert(&self, tensor: &TensorInfo) -> bool {
        let of = |model: &(Catalog, _)| recipe::expert_tensor(self.gguf, &model.0, tensor);
        self.model.as_ref().and_then(of).is_some()
    }

    /// Reads everything of `batch` into the buffer.
    fn fill(&mut self, batch: &Batch) -> Result<(), PackError> {
        let files = self.gguf.files().files();
        self.buffer.resize(batch.buffer_bytes, 0);
        for piece in &batch.pieces {
            let file = &files[usize::from(piece.file)];
            read(file, &mut self.buffer[piece.at..piece.at + piece.len], piece.from_bytes)?;
        }
        for (file, from_bytes, len_bytes) in batch.ranges() {
            hints::done_reading(&files[usize::from(file)], from_bytes, len_bytes);
        }
        Ok(())
    }

    fn copy(&self, tensor: usize) -> Copy {
        let info = &self.gguf.tensors()[tensor];
        Copy { file: info.file, from_bytes: info.offset_bytes, to_bytes: 0, len_bytes: info.len_bytes }
    }
}

/// Compares two files of one model tensor by tensor, bit for bit, however each keeps its experts.
pub struct Comparison<'a> {
    file: Side<'a>,
    other: Side<'a>,
    /// Of `file`.
    plan: Plan,
    /// For each step that copies, the tensor's index in either file.
    tensors: Vec<Option<(usize, usize)>>,
    n_steps_done: usize,
    progress: Progress,
    checked: Checked,
}

impl<'a> Comparison<'a> {
    /// Begins with headers: what only one file has is a difference.
    pub fn new(file: &'a Gguf, other: &'a Gguf) -> Self {
        let described = recipe::describe(file).ok().zip(recipe::describe(other).ok());
        let models =
            described.filter(|(a, b)| (a.0.n_layers(), a.1.n_experts()) == (b.0.n_layers(), b.1.n_experts()));
        let (file_model, other_model) = models.unzip();
        let side = |gguf, model: Option<(ModelShape, Catalog)>| {
            let model = model.map(|(shape, catalog)| {
                let places = places(&shape, &catalog);
                (catalog, places)
            });
            Side { gguf, model, buffer: Vec::new() }
        };
        let (file, other) = (side(file, file_model), side(other, other_model));
        let layers = file.model.as_ref().map(|model| model.1.clone()).unwrap_or_default();
        let mut comparison = Self {
            file,
            other,
            plan: Plan { layers, steps: Vec::new() },
            tensors: Vec::new(),
            n_steps_done: 0,
            progress: Progress::default(),
            checked: Checked::default(),
        };
        comparison.compare_keys();
        comparison.plan_tensors();
        comparison.plan_experts();
        let steps = 0..comparison.plan.steps.len();
        comparison.progress.total_bytes = steps.map(|idx| comparison.plan.step_bytes(idx)).sum();
        comparison
    }

    /// Keys of the model; those that say how a file is laid out may differ.
    fn compare_keys(&mut self) {
        let kept = |key: &str| {
            !key.starts_with(packed::PREFIX) && !key.starts_with("split.") && key != "general.alignment"
        };
        let same = |a: &Value, b: &Value| a == b || format!("{a:?}") == format!("{b:?}");
        let (file, other) = (&self.file.gguf.metadata, &self.other.gguf.metadata);
        let mut found = Vec::new();
        for (key, value) in file.entries().iter().filter(|entry| kept(&entry.0)) {
            match other.value(key) {
                None => found.push((key, "only this file has the key".to_owned())),
                Some(theirs) if same(value, theirs) => {}
                Some(theirs) => found.push((key, format!("it is {value} here and {theirs} there"))),
            }
        }
        for (key, _) in other.entries().iter().filter(|entry| kept(&entry.0)) {
            if file.value(key).is_none() {
                found.push((key, "only the other file has the key".to_owned()));
            }
        }
        for (key, problem) in found {
            let (name, path) = (format!("key {key}"), self.file.gguf.files().path(0));
            self.checked.push(Difference { name, path, offset_bytes: None, problem });
        }
    }

    /// Tensors that aren't experts, by name.
    fn plan_tensors(&mut self) {
        let (file, other) = (self.file.gguf, self.other.gguf);
        let difference = |name: &str, path, problem: String| Difference {
            name: format!("tensor {name}"),
            path,
            offset_bytes: None,
            problem,
        };
        self.checked.n_tensors = file.tensors().len();
        for (idx, info) in file.tensors().iter().enumerate().filter(|(_, t)| !self.file.is_expert(t)) {
            let is_same = |theirs: &TensorInfo| theirs.name == info.name && !self.other.is_expert(theirs);
            let there = other.tensors().iter().position(is_same);
            let path = file.files().path(info.file);
            let Some(there) = there else {
                self.checked.push(difference(&info.name, path, "only this file has it".into()));
                continue;
            };
            let theirs = &other.tensors()[there];
            if (info.quant, info.dims()) != (theirs.quant, theirs.dims()) {
                let (a, b) = (info.dims(), theirs.dims());
                let problem = format!("it is {} {a:?} here and {} {b:?} there", info.quant, theirs.quant);
                self.checked.push(difference(&info.name, path, problem));
                continue;
            }
            self.plan.push_copy(self.file.copy(idx), STEP_BYTES);
            self.tensors.resize(self.plan.steps.len(), Some((idx, there)));
        }
        for info in other.tensors().iter().filter(|theirs| !self.other.is_expert(theirs)) {
            if file.tensor(&info.name).is_none_or(|ours| self.file.is_expert(ours)) {
                let path = other.files().path(info.file);
                self.checked.push(difference(&info.name, path, "only the other file has it".into()));
            }
        }
    }

    fn plan_experts(&mut self) {
        let Some((file, other)) = self.file.model.as_ref().zip(self.other.model.as_ref()) else { return };
        for (layer, (here, there)) in (0..).zip(file.1.iter().zip(&other.1)) {
            if here.layout == there.layout {
                self.plan.push_experts(layer, STEP_BYTES);
                continue;
            }
            let shown = |place: &Destination| {
                [place.layout.gate, place.layout.up, place.layout.down]
                    .map(|part| format!("{} {}x{}", part.quant, part.n_rows, part.n_cols))
                    .join(", ")
            };
            self.checked.push(Difference {
                name: format!("experts of layer {layer}"),
                path: self.file.gguf.files().path(0),
                offset_bytes: None,
                problem: format!("they are {} here and {} there", shown(here), shown(there)),
            });
        }
        self.tensors.resize(self.plan.steps.len(), None);
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// What was found so far.
    pub fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Compares some megabytes; `false` when nothing is left.
    ///
    /// # Errors
    /// [`PackError::Read`].
    pub fn step(&mut self) -> Result<bool, PackError> {
        let idx = self.n_steps_done;
        let Some(step) = self.plan.steps.get(idx).cloned() else { return Ok(false) };
        match step {
            Step::Copy(copy) => self.compare_tensor(idx, copy)?,
            Step::Rows(_) => unreachable!("a comparison plans copies and experts"),
            Step::Experts { layer, .. } => self.compare_experts(idx, layer)?,
        }
        self.progress.done_bytes += self.plan.step_bytes(idx);
        self.checked.bytes = self.progress.done_bytes;
        self.n_steps_done += 1;
        Ok(self.n_steps_done < self.plan.steps.len())
    }

    fn compare_tensor(&mut self, idx: usize, copy: Copy) -> Result<(), PackError> {
        let Some((here, there)) = self.tensors[idx] else { return Ok(()) };
        let info = &self.file.gguf.tensors()[here];
        let theirs = self.other.copy(there);
        let from_bytes = theirs.from_bytes + (copy.from_bytes - info.offset_bytes);
        self.file.fill(&Batch::of_copy(copy))?;
        self.other.fill(&Batch::of_copy(Copy { from_bytes, len_bytes: copy.len_bytes, ..theirs }))?;
        if let Some(at) = first_difference(&self.file.buffer, &self.other.buffer) {
            let path = self.file.gguf.files().path(copy.file);
            let (name, offset_bytes) = (format!("tensor {}", info.name), Some(copy.from_bytes + at as u64));
            let problem = differs(&self.file.buffer, &self.other.buffer, at);
            self.checked.push(Difference { name, path, offset_bytes, problem });
        }
        Ok(())
    }

    fn compare_experts(&mut self, idx: usize, layer: u16) -> Result<(), PackError> {
        let keys: Vec<ExpertKey> = self.plan.step_experts(idx).collect();
        let mut batches = Vec::with_capacity(2);
        for side in [&mut self.file, &mut self.other] {
            let Some((catalog, places)) = &side.model else { return Ok(()) };
            let batch = Batch::of_experts(keys.iter().copied(), &places[usize::from(layer)], catalog);
            side.fill(&batch)?;
            batches.push(batch);
        }
        let layout = &self.plan.layers[usize::from(layer)].layout;
        let lens = [layout.gate, layout.up, layout.down].map(|part| part.bytes());
        for (here, there) in batches[0].experts.iter().zip(&batches[1].experts) {
            for part in 0..3 {
                let a = &self.file.buffer[here.parts_at[part]..][..lens[part]];
                let b = &self.other.buffer[there.parts_at[part]..][..lens[part]];
                let Some(at) = first_difference(a, b) else { continue };
                let model = self.file.model.as_ref().and_then(|model| model.0.record(here.key));
                let range = model.map(|record| record.parts[part]);
                self.checked.push(Difference {
                    name: format!("layer {layer}, expert {}, {}", here.key.expert.0, PARTS[part]),
                    path: range.map(|range| self.file.gguf.files().path(range.file)).unwrap_or_default(),
                    offset_bytes: range.map(|range| range.offset_bytes + at as u64),
                    problem: differs(a, b, at),
                });
            }
        }
        self.checked.n_experts += keys.len();
        Ok(())
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}

fn differs(a: &[u8], b: &[u8], at: usize) -> String {
    format!("the byte is {:#04x} here and {:#04x} there", a[at], b[at])
}
