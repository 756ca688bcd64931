package workpolicy

// formerLabel is [Label] as releases before hawser.dev/agent set it. Objects with it stay protected. It
// goes when no agent was installed or moved by such a release: not before the second release after the
// first one that sets [Label].
const formerLabel = "hawser.io/agent"
