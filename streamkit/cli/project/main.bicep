// A storage account for streamkit stores, a function app that appends to them, and the two data roles that its managed
// identity needs. Shared keys are off: nothing but identities opens the account. The roles are given for the account, which
// holds tables, blobs and archives of all stores under the URL; tenants that must not reach each other get one each.
// az deployment group create -g GROUP -f main.bicep -p storeId=UUID

@description('The UUID of the store that the function writes to.')
@minLength(36)
@maxLength(36)
param storeId string

@description('Begins the names of all tables and the container; the URL is azure://ACCOUNT/PREFIX.')
@minLength(3)
@maxLength(20)
param prefix string = 'streamkit'

param location string = resourceGroup().location

var suffix = uniqueString(resourceGroup().id)
var blobDataContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
var tableDataContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
var blobDataOwner = 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'

resource stores 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: take('stores${suffix}', 24)
  location: location
  kind: 'StorageV2'
  sku: { name: 'Standard_ZRS' }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }
}

// The function's own: its code and the runtime's locks, apart from the data.
resource runtime 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: take('runtime${suffix}', 24)
  location: location
  kind: 'StorageV2'
  sku: { name: 'Standard_LRS' }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }
}

resource runtimeBlobs 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: runtime
  name: 'default'
}

resource code 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = {
  parent: runtimeBlobs
  name: 'code'
}

resource plan 'Microsoft.Web/serverfarms@2023-12-01' = {
  name: 'plan-${suffix}'
  location: location
  kind: 'functionapp'
  sku: { tier: 'FlexConsumption', name: 'FC1' }
  properties: { reserved: true }
}

resource app 'Microsoft.Web/sites@2023-12-01' = {
  name: 'orders-${suffix}'
  location: location
  kind: 'functionapp,linux'
  identity: { type: 'SystemAssigned' }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${runtime.properties.primaryEndpoints.blob}${code.name}'
          authentication: { type: 'SystemAssignedIdentity' }
        }
      }
      runtime: { name: 'python', version: '3.12' }
      scaleAndConcurrency: { instanceMemoryMB: 2048, maximumInstanceCount: 40 }
    }
    siteConfig: {
      appSettings: [
        { name: 'AzureWebJobsStorage__accountName', value: runtime.name }
        { name: 'STREAMKIT_URL', value: 'azure://${stores.name}/${prefix}' }
        { name: 'STREAMKIT_STORE', value: storeId }
      ]
    }
  }
}

resource tables 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: stores
  name: guid(stores.id, app.id, tableDataContributor)
  properties: {
    principalId: app.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableDataContributor)
  }
}

resource blobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: stores
  name: guid(stores.id, app.id, blobDataContributor)
  properties: {
    principalId: app.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobDataContributor)
  }
}

resource runtimeOwner 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: runtime
  name: guid(runtime.id, app.id, blobDataOwner)
  properties: {
    principalId: app.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobDataOwner)
  }
}

output url string = 'azure://${stores.name}/${prefix}'
output functionApp string = app.name
