//! From the form that an answer must have, or the tools that it must call, to a grammar.

use std::sync::Arc;

use forerun_decode::text::CallFormat;
use forerun_decode::{GrammarBegin, GrammarSpec, ToolCallSpec};

use super::{Conversation, Form, ToolChoice, tool_name};
use crate::desk::{Bound, Facts};
use crate::refusal::Refusal;

/// What answers to a conversation keep to, beginning where `begin` says.
///
/// # Errors
/// A refusal that names the field: a form that isn't enforced, tools that aren't there or that the template can't call.
pub(super) fn of_chat(
    conversation: &Conversation,
    form: Option<&Form>,
    begin: GrammarBegin,
    facts: &Facts,
) -> Result<Option<Bound>, Refusal> {
    let tools = match &conversation.choice {
        ToolChoice::Auto => None,
        ToolChoice::Required => Some(conversation.tools.clone()),
        ToolChoice::Named(name) => {
            let named: Vec<_> =
                conversation.tools.iter().filter(|tool| tool_name(tool) == name).cloned().collect();
            if named.is_empty() {
                let words = format!("`tool_choice` names `{name}`, which isn't one of the tools");
                return Err(Refusal::invalid("tool_choice", words));
            }
            Some(named)
        }
    };
    let spec = match (tools, form) {
        (Some(tools), _) => {
            let several = conversation.choice == ToolChoice::Required && !conversation.is_single_call;
            check(&forced(tools, several, facts)?, facts)
        }
        (None, None) => return Ok(None),
        (None, Some(form)) if !conversation.tools.is_empty() => {
            check(&form_or_calls(form, conversation, facts)?, facts)
        }
        (None, Some(form)) => check(form, facts),
    };
    Ok(Some(Bound { spec: spec?, begin }))
}

/// What answers to a prompt without a template keep to.
///
/// # Errors
/// A refusal that names the field.
pub(super) fn of_raw(form: Option<&Form>, facts: &Facts) -> Result<Option<Bound>, Refusal> {
    let spec = form.map(|form| check(form, facts)).transpose()?;
    Ok(spec.map(|spec| Bound { spec, begin: GrammarBegin::AtOnce }))
}

/// The form of an answer that calls.
fn forced(tools: Vec<serde_json::Value>, several: bool, facts: &Facts) -> Result<Form, Refusal> {
    if tools.is_empty() {
        let words = "`tool_choice` asks for a call, but there are no tools";
        return Err(Refusal::invalid("tool_choice", words));
    }
    let format = call_format(facts).ok_or_else(|| {
        let words = "`tool_choice` asks for a call, but this model's template shows no way to write one";
        Refusal::unsupported("tool_choice", words)
    })?;
    let spec = GrammarSpec::ToolCalls(ToolCallSpec { tools, format, several });
    Ok(Form { spec: Arc::new(spec), param: "tools".into() })
}

/// A form for the text of an answer, which may call in its place. A model that no way to call is shown keeps to the form.
fn form_or_calls(form: &Form, conversation: &Conversation, facts: &Facts) -> Result<Form, Refusal> {
    if matches!(*form.spec, GrammarSpec::Lark(_)) {
        let words = format!(
            "`{}` with tools that the model may call or not isn't possible: write a `tool_choice` that forbids or forces \
             calls, or a schema or a regular expression instead",
            form.param
        );
        return Err(Refusal::unsupported(form.param.clone(), words));
    }
    let Some(format) = call_format(facts) else { return Ok(form.clone()) };
    let several = !conversation.is_single_call;
    let calls = ToolCallSpec { tools: conversation.tools.clone(), format, several };
    let spec = GrammarSpec::FormOrCalls { form: Box::new(GrammarSpec::clone(&form.spec)), calls };
    Ok(Form { spec: Arc::new(spec), param: form.param.clone() })
}

/// How the model's template writes calls.
fn call_format(facts: &Facts) -> Option<CallFormat> {
    facts.template.as_ref()?.call_format()
}

/// Compiles a form to see whether it can be kept to.
fn check(form: &Form, facts: &Facts) -> Result<Arc<GrammarSpec>, Refusal> {
    let compiled = facts.with_grammar(&form.spec, |_| Arc::clone(&form.spec));
    compiled.map_err(|error| Refusal::from(error).at(form.param.clone()))
}
