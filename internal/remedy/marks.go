package remedy

// Marks that Stoker, people and training code leave on objects of the cluster, as
// annotations or labels.
const (
	// MarkHold on a node: the [fleet.Hold] as JSON. Written by Stoker alone.
	MarkHold = "stoker.dev/hold"
	// MarkWhy on a node or job: one sentence for people.
	MarkWhy = "stoker.dev/why"
	// MarkOptOut on a node or job, as annotation or label: Stoker does no harm here. The value says why.
	MarkOptOut = "stoker.dev/opt-out"

	// MarkCheckpointRequest on a job asks the training code to save; the value is the order's key.
	MarkCheckpointRequest = "stoker.dev/checkpoint-request"
	// MarkCheckpointAck on a job is the answer: the key of the request that was obeyed.
	MarkCheckpointAck = "stoker.dev/checkpoint-ack"
	// MarkCheckpointStep, MarkCheckpointURI and MarkCheckpointTime describe the newest
	// complete checkpoint: training iterations, place, and time (RFC 3339).
	MarkCheckpointStep = "stoker.dev/checkpoint-step"
	MarkCheckpointURI  = "stoker.dev/checkpoint-uri"
	MarkCheckpointTime = "stoker.dev/checkpoint-time"

	// MarkStoppedBy and MarkStartedBy on a job are the keys of our newest orders.
	MarkStoppedBy = "stoker.dev/stopped-by"
	MarkStartedBy = "stoker.dev/started-by"
	// MarkAttempt on a job counts how often Stoker has started it anew.
	MarkAttempt = "stoker.dev/attempt"
	// MarkResumeFrom on the pod template: what this attempt resumes from. Training code
	// reads it through an env with a fieldRef, or finds its own newest checkpoint.
	MarkResumeFrom = "stoker.dev/resume-from"

	// MarkReadLogs on a job lets Stoker read the end of its containers' logs when one has
	// failed and nothing else says why; the value is "true".
	MarkReadLogs = "stoker.dev/read-logs"
	// MarkRecipe on a job, with the name of what has happened behind it, such as
	// stoker.dev/on-oom: what its owner would have changed, NAME=VALUE, comma separated.
	MarkRecipe = "stoker.dev/on-"
	// MarkRecipeBy on a job is the key of our newest order that changed its environment.
	MarkRecipeBy = "stoker.dev/recipe-by"
	// MarkEnv on the pod template, with the variable's name behind it: a value of a recipe.
	// Pods read it through an env with a fieldRef.
	MarkEnv = "env.stoker.dev/"

	// MarkAction and MarkKey on a repair's Job: which action it is and of which order.
	MarkAction = "stoker.dev/action"
	MarkKey    = "stoker.dev/key"
	// MarkBootID on a repair's Job: the boot that it is meant for.
	MarkBootID = "stoker.dev/boot-id"
	// MarkGPU on a repair's Job: the uuid of the GPU that it is about.
	MarkGPU = "stoker.dev/gpu"
)
