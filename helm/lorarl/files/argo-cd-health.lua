-- Health of a LoRARLJob for Argo CD (resource.customizations.health.lorarl.io_LoRARLJob), of a LoRARLSweep
-- (resource.customizations.health.lorarl.io_LoRARLSweep), and of a LoRARLSchedule
-- (resource.customizations.health.lorarl.io_LoRARLSchedule).
-- A job is healthy when it has succeeded, as a Job of batch/v1 is. A schedule is while it can start jobs.
local status = obj.status or {}
if status.phase == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not seen this version of the job yet."}
end

local message, stalled = "", false
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Running" then
    message = condition.message
  elseif condition.type == "Stalled" and condition.status == "True" then
    stalled = true
  end
end

if stalled then
  return {status = "Degraded", message = message}
elseif status.phase == "Succeeded" then
  return {status = "Healthy", message = message}
elseif status.phase == "Suspended" then
  return {status = "Suspended", message = message}
elseif obj.kind == "LoRARLSchedule" then
  return {status = "Healthy", message = message}
end
return {status = "Progressing", message = message}
