package workpolicy

// formerLabel is the name of [Label] in former releases. Objects with it stay protected. Remove it when no agent
// was installed or moved by such a release: not before the second release after the first one that sets [Label].
const formerLabel = "hawser.io/agent"
