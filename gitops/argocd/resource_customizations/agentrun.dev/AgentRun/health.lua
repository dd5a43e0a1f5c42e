-- Health of an AgentRun: Progressing until it is over, Suspended while a person is asked, then Healthy or Degraded.
local function condition(kind)
  if obj.status ~= nil and obj.status.conditions ~= nil then
    for _, found in ipairs(obj.status.conditions) do
      if found.type == kind and found.status == "True" then
        return found
      end
    end
  end
  return nil
end

local function said(found)
  if found.message ~= nil and found.message ~= "" then
    return found.reason .. ": " .. found.message
  end
  return found.reason
end

local complete = condition("Complete")
if complete ~= nil then
  -- Stalled says that it failed for good; a run that was cancelled on request is done.
  if condition("Stalled") ~= nil then
    return {status = "Degraded", message = said(complete)}
  end
  return {status = "Healthy", message = said(complete)}
end
local asked = condition("AwaitingApproval")
if asked ~= nil then
  return {status = "Suspended", message = asked.message}
end
local under_way = condition("Reconciling")
if under_way ~= nil then
  return {status = "Progressing", message = said(under_way)}
end
return {status = "Progressing", message = "the operator has not seen the run yet"}
