-- Cancel is offered until the run is over or has been asked to end. There is no approve: whoever decides must be known to the
-- cluster by name, and Argo CD writes under its own.
local over = obj.spec.cancel == true
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, found in ipairs(obj.status.conditions) do
    if found.type == "Complete" and found.status == "True" then
      over = true
    end
  end
end
return {cancel = {disabled = over}}
